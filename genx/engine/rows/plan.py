"""All rows of a run in order, each with its identity and settings, or with what is wrong with it. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from genx.checkpoint import GenerationDefaults
from genx.engine.rows.identity import RowIdentity, prompt_digest, row_seed, settings_digest
from genx.engine.rows.records import Record, Separator, read_records
from genx.engine.rows.requests import PromptFields, RowRequest, passed_fields, read_row, row_id, settings_of
from genx.engine.rows.sources import Source
from genx.engine.rows.template import RowError
from genx.engine.settings import GenerationSettings, RequestedSettings, resolve_settings
from genx.errors import GenxError

DEFAULT_SEED = 0
"""The run's seed where none is given: a run that is resumed must go on with the one that it began with."""


@dataclass(frozen=True)
class Row:
    """One text to generate, or the reason why it cannot be.

    Attributes:
        place: its place among all rows of the run, from 0.
        record: where it comes from.
        identity: what makes it the same row in another run.
        file: the name of its input, None where there is one only.
        sample: which of several answers to its prompt, from 1; None where one is asked for.
        id: what the record calls itself.
        passed: fields of the record that pass through to the answer.
        request: what it asks for; None if that cannot be told.
        settings: what takes effect, with the row's own seed; None if that cannot be told.
        run: what shapes its text beside the settings and the prompt.
        error: why it cannot be generated.
    """

    place: int
    record: Record
    identity: RowIdentity
    file: str | None
    sample: int | None
    id: str | int | None = None
    passed: Mapping[str, Any] = field(default_factory=dict)
    request: RowRequest | None = None
    settings: GenerationSettings | None = None
    run: Mapping[str, Any] | None = None
    error: str | None = None

    def key(self, **more: Any) -> str | None:
        """Digests of the prompt and of all that shapes the text; None for a row that cannot be generated.

        Args:
            more: what shapes this row's text and not that of others.
        """
        if self.request is None or self.settings is None or self.run is None:
            return None
        prompt = prompt_digest(self.request.prompt, self.request.messages)
        return f"{prompt}-{settings_digest(self.settings, {**self.run, **more})}"


@dataclass(frozen=True)
class Plan:
    """What a run is to do; iterating gives its rows, as often as its sources can be read.

    Attributes:
        sources: where rows come from.
        separator: what stands between prompts of a .txt file.
        fields: where a row's prompt stands.
        requested: settings for all rows.
        defaults: what the checkpoint says.
        samples: answers to each prompt.
        run: what shapes all texts beside prompts and settings: the model, its arithmetic, how prompts are read.
    """

    sources: Sequence[Source]
    separator: Separator
    fields: PromptFields
    requested: RequestedSettings
    defaults: GenerationDefaults
    samples: int | None
    run: Mapping[str, Any]

    def rows(self) -> Iterator[Row | None]:
        """Every row, and None for a blank line."""
        place = 0
        first_with: dict[str, str] = {}
        for source in self.sources:
            for record in read_records(source, self.separator):
                if record.is_blank:
                    yield None
                    continue
                for row in self._rows_of(record, place, first_with):
                    yield row
                    place += 1

    def count(self) -> int:
        """How many rows there are, without a look at what they ask for."""
        records = (record for source in self.sources for record in read_records(source, self.separator))
        return sum(not record.is_blank for record in records) * (self.samples or 1)

    def _rows_of(self, record: Record, place: int, first_with: dict[str, str]) -> Iterator[Row]:
        request = settings = given = error = None
        try:
            given = self._unique_id(record, first_with)
            request = read_row(record, self.fields)
            settings = self._settings(request)
        except GenxError as problem:
            error = str(problem)
        for sample in range(1, (self.samples or 1) + 1):
            identity = RowIdentity.of(given, self._file(record), record.number, sample)
            yield Row(
                place=place + sample - 1,
                record=record,
                identity=identity,
                file=self._file(record),
                sample=None if self.samples is None else sample,
                id=given,
                passed=passed_fields(record, self.fields),
                request=request,
                settings=None if request is None or settings is None else _seeded(request, settings, identity),
                run=self.run,
                error=error,
            )

    def _unique_id(self, record: Record, first_with: dict[str, str]) -> str | int | None:
        given = record.source.path_in_folder if record.is_whole_file else row_id(record.fields)
        if given is None:
            return None
        here = f"row {record.number}" + (f" of {record.source.name}" if self._has_several else "")
        first = first_with.setdefault(str(given), here)
        if first != here:
            raise RowError(f"the id {given!r} is that of {first} too; ids must differ")
        return given

    def _settings(self, request: RowRequest) -> GenerationSettings:
        if not request.overrides:
            return self.common_settings
        return self._resolve(settings_of(request, self.requested))

    @cached_property
    def common_settings(self) -> GenerationSettings:
        """What takes effect for rows without settings of their own.

        Raises:
            ArgumentError: a value, or a combination of values, that is not allowed.
        """
        return self._resolve(self.requested)

    def _resolve(self, requested: RequestedSettings) -> GenerationSettings:
        return resolve_settings(requested, self.defaults, lambda: DEFAULT_SEED)

    @cached_property
    def _has_several(self) -> bool:
        return len(self.sources) > 1

    def _file(self, record: Record) -> str | None:
        return record.source.name if self._has_several else None


def _seeded(request: RowRequest, settings: GenerationSettings, identity: RowIdentity) -> GenerationSettings:
    """The settings with the seed of the row's own generator; a seed that the row itself names is taken as it is."""
    if settings.seed is None or ("seed" in request.overrides and identity.sample == 1):
        return settings
    return replace(settings, seed=row_seed(settings.seed, identity))
