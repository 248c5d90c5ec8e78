"""The roles of a conversation's turns."""

from typing import Any

Messages = list[dict[str, Any]]  # of a conversation, with `role` and `content`
ANSWERS = "assistant"  # the role whose turns are answers
