"""Conditions keep their order and the time of their last change of status."""

from manifests.kinds.meta import Condition, ConditionStatus, find_condition, set_condition

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def ready(status: ConditionStatus, reason: str = "Because", message: str = "") -> Condition:
    return Condition(type="Ready", status=status, reason=reason, message=message)


def test_a_new_condition_goes_last_and_is_stamped() -> None:
    first = set_condition((), ready(ConditionStatus.TRUE), EARLY)
    both = set_condition(
        first, Condition(type="DiskPressure", status=ConditionStatus.FALSE, reason="Room"), LATE
    )
    assert [(item.type, item.last_transition_time) for item in both] == [
        ("Ready", EARLY),
        ("DiskPressure", LATE),
    ]


def test_the_same_status_keeps_its_transition_time_but_takes_the_new_reason() -> None:
    before = set_condition((), ready(ConditionStatus.TRUE), EARLY)
    after = set_condition(before, ready(ConditionStatus.TRUE, "Other", "words"), LATE)
    assert [(item.last_transition_time, item.reason, item.message) for item in after] == [
        (EARLY, "Other", "words")
    ]


def test_a_changed_status_is_stamped_anew_in_its_old_place() -> None:
    before = set_condition((), ready(ConditionStatus.TRUE), EARLY)
    before = set_condition(
        before, Condition(type="DiskPressure", status=ConditionStatus.FALSE, reason="Room"), EARLY
    )
    after = set_condition(before, ready(ConditionStatus.FALSE), LATE)
    assert [(item.type, item.status, item.last_transition_time) for item in after] == [
        ("Ready", ConditionStatus.FALSE, LATE),
        ("DiskPressure", ConditionStatus.FALSE, EARLY),
    ]


def test_setting_the_same_condition_again_changes_nothing() -> None:
    once = set_condition((), ready(ConditionStatus.TRUE), EARLY)
    assert set_condition(once, ready(ConditionStatus.TRUE), LATE) == once


def test_a_time_given_by_the_caller_does_not_override_the_rule() -> None:
    forged = ready(ConditionStatus.TRUE).model_copy(update={"last_transition_time": "1999"})
    (placed,) = set_condition((), forged, EARLY)
    assert placed.last_transition_time == EARLY


def test_a_condition_is_found_by_type() -> None:
    conditions = set_condition((), ready(ConditionStatus.TRUE), EARLY)
    assert find_condition(conditions, "Ready") == conditions[0]
    assert find_condition(conditions, "MemoryPressure") is None
