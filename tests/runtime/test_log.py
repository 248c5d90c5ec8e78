"""Log messages that are told to a user."""

import logging

from flaxformer_lite.runtime.log import capture_logs


def test_messages_of_the_package_are_heard_once_and_only_within_the_block(caplog):
    log = logging.getLogger("flaxformer_lite")
    said = []
    with capture_logs(logging.WARNING, said.append):
        log.info("low")
        log.warning("%s words", 2)
        logging.getLogger("another").warning("elsewhere")
        inner = []
        with capture_logs(logging.WARNING, inner.append):
            log.warning("within")
    log.warning("late")
    assert said == ["2 words"] and inner == ["within"]
    assert [record.getMessage() for record in caplog.records] == ["elsewhere", "late"]
