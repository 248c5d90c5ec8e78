"""Rewards of written answers, one per file, or `module:function` for one elsewhere.

A file defines

    score(records: Sequence[Json]) -> Sequence[float]

which returns a number for each answer. A record has the columns of the answer's row of the table
and `objective.reward_options`, and over them `prompt` and `written`, texts; `tokens`, how many
were written; `most_tokens`, how many could be; and `cut`, whether the answer has no end. A reward
must be a function of the records alone: a step that is run again asks it again.
"""
