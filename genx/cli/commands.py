"""How genx's commands differ from Typer's: plain help by groups of options, and a quick start."""

from typing import Any

from typer.core import TyperCommand


def settle_flags(parameters: list[Any]) -> list[Any]:
    """The parameters, with False as the default of plain flags that have none.

    Typer's own flags (--help and those of completion) default to None, which it imports pydantic to look at: that is
    half of the time that --help or a usage error takes.
    """
    for parameter in parameters:
        if parameter.default is None and getattr(parameter, "is_flag", False) and not parameter.secondary_opts:
            parameter.default = False
    return parameters


class GroupedCommand(TyperCommand):
    """A command whose plain help lists its options by `rich_help_panel`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return settle_flags(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                group = "Arguments" if parameter.param_type_name == "argument" else "Other"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)
