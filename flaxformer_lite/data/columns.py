"""The columns of a table that a task reads, by role."""

from collections.abc import Sequence

from flaxformer_lite.config import ConfigError, plugin_name
from flaxformer_lite.data.scan import RoleRow, RoleRows, role_row
from flaxformer_lite.data.stored import LazyRows
from flaxformer_lite.data.table import Table
from flaxformer_lite.objectives.tables.task import Task

NAMED = 12  # most columns that a message names


def columns_of(
    objective: Task, read: Table, named: str, *, predicts: bool = False
) -> dict[str, str]:
    """Maps each role of a task to a column, as configured or by a conventional name.

    Args:
      objective: the task.
      read: the table.
      named: the configured columns, as ROLE=NAME,...
      predicts: whether to leave out the columns that the task predicts.

    Raises:
      ConfigError: there is no such column, or none with a conventional name.
    """
    configured = dict(pair.split("=", 1) for pair in named.split(",") if pair)
    roles = {column.role: column for column in objective.columns}
    has = f"has {', '.join(map(repr, read.columns[:NAMED]))}"
    if len(read.columns) > NAMED:
        has += ", ..."
    unknown = sorted(set(configured) - set(roles))
    if unknown:
        raise ConfigError(
            f"data.columns={named!r}: {plugin_name(objective)} reads {', '.join(roles)}, not"
            f" {unknown[0]!r}."
        )
    columns = {}
    lacking = []
    for role, column in roles.items():
        if predicts and column.predicted:
            continue
        name = _conventional(read.columns, (role, *column.names))
        if role in configured:
            name = _conventional(read.columns, (configured[role],)) or configured[role]
        if name in read.columns or str(name).partition(".")[0] in read.columns:
            columns[role] = str(name)
        elif role in configured:
            raise ConfigError(
                f"data.columns={named!r}: {read.where} {has}, and no {configured[role]!r}."
            )
        elif not column.optional:
            lacking.append(role)
    flag = "--config.data.columns"
    if read.where.startswith("--data="):
        flag = "--columns"
    if objective.begins and columns.keys().isdisjoint(objective.begins):
        raise ConfigError(
            f"{read.where}: {has}, where {plugin_name(objective)} needs a column for"
            f" {' or '.join(map(repr, objective.begins))}; name it with"
            f" {flag}={objective.begins[-1]}=NAME, and that of what is to be learned with it."
        )
    if lacking:
        what = "a column for"
        them = "it"
        if len(lacking) > 1:
            what = "columns for"
            them = "them"
        value = ",".join(f"{role}=NAME" for role in lacking)
        raise ConfigError(
            f"{read.where}: {has}, where {plugin_name(objective)} needs {what}"
            f" {' and '.join(map(repr, lacking))}; name {them} with {flag}={value}."
        )
    return columns


def _conventional(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """Returns the column that has one of these names.

    An exact match comes first. Failing that, names of two or more letters match regardless of case
    and surrounding spaces.
    """
    for name in names:
        if name in columns:
            return name
    plain = {column.strip().casefold(): column for column in reversed(columns)}
    for name in names:
        if len(name) > 1 and name.casefold() in plain:
            return plain[name.casefold()]
    return None


def by_role(
    objective: Task, read: Table, named: str, *, predicts: bool = False
) -> Sequence[RoleRow]:
    """Returns the values of each row by role; None for roles without a column."""
    columns = columns_of(objective, read, named, predicts=predicts)
    names = {column.role: columns.get(column.role) for column in objective.columns}
    if isinstance(read.rows, LazyRows):
        return RoleRows(read.rows, names)
    return [role_row(row, names) for row in read.rows]
