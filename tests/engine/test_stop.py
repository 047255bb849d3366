"""Stop texts in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genx.engine.stop import StopMatcher


def _run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    released = []
    for piece in pieces:
        text, found = matcher.push(piece)
        released.append(text)
        if found:
            return released, True
    return [*released, matcher.flush()], False


def test_exactly_the_tail_that_may_become_a_stop_is_held() -> None:
    matcher = StopMatcher(["DEFG", "FX"])
    assert [matcher.push(sign)[0] for sign in "ABCDEF"] == ["A", "B", "C", "", "", ""]
    assert matcher.push("H") == ("DEFH", False)
    assert matcher.push("DEF") == ("", False)
    assert matcher.push("X") == ("DE", True)  # FX is complete, DEFG is not


def test_without_stops_nothing_is_held() -> None:
    matcher = StopMatcher([])
    assert matcher.push("text") == ("text", False)
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("stops", "text", "released"),
    [
        (["b", "cd"], "abcd", "a"),
        (["bcd", "abcde"], "xabcdef", "xa"),  # bcd is complete first
        (["cd", "abcd"], "xabcd", "x"),  # both end together: the longer one
        (["aa"], "aaa", ""),
    ],
)
def test_of_several_stops_the_one_complete_first_counts(stops: list[str], text: str, released: str) -> None:
    for pieces in ([text], list(text)):
        found = _run(pieces, stops)
        assert ("".join(found[0]), found[1]) == (released, True)


@given(st.text("ab🦊", max_size=30), st.lists(st.text("ab🦊", min_size=1, max_size=4), max_size=3), st.data())
def test_cuts_do_not_change_the_result(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    released, found = _run(pieces, stops)
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    assert ("".join(released), found) == (text[: min(ends)[1]] if ends else text, bool(ends))


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_is_held_is_the_longest_beginning_of_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    released = ""
    for position, sign in enumerate(text):
        piece, found = matcher.push(sign)
        if found:
            return
        released += piece
        seen = text[: position + 1]
        tails = [seen[start:] for start in range(len(seen)) if any(stop.startswith(seen[start:]) for stop in stops)]
        assert seen.removeprefix(released) == max(tails, key=len, default="")
