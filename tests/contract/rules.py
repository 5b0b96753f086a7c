"""Rules of Canal, Flume and RocketMQ that the contract suites show.

The suites are shipped in ``cdc.testing``, where users run them without this repository's markers. So the marker ``rule``
of their tests is given here, by the class that holds the contract and the name of the test.
"""

from __future__ import annotations

RULES: dict[str, dict[str, tuple[str, ...]]] = {
    "TestFile": {
        "test_the_filter_is_kept_with_its_subscriber": ("canal-meta-1",),
        "test_invalid_names_are_refused": ("canal-meta-1",),
        "test_subscribe_again_replaces_the_filter_and_keeps_cursor_and_batches": ("canal-meta-2",),
        "test_first_latest_by_id_and_all": (
            "canal-meta-4",
            "canal-meta-8",
        ),
        "test_unsubscribe_removes_cursor_batches_and_nothing_else": ("canal-meta-4",),
        "test_batch_ids_grow_and_a_given_id_raises_the_counter": ("canal-meta-5",),
        "test_everything_is_there_when_it_is_opened_again": ("canal-meta-5",),
        "test_removing_another_than_the_first_names_both_and_changes_nothing": ("canal-meta-7",),
        "test_rollback_of_all_keeps_the_cursor_and_ids_go_on_growing": ("canal-meta-8",),
        "test_where_a_get_starts": ("canal-meta-9",),
        "test_ack_removes_the_batch_and_moves_the_cursor_in_one_change": ("canal-meta-11",),
        "test_rollback_of_a_batch_rolls_back_the_later_ones": ("canal-meta-14",),
        "test_sigkill_in_the_middle_of_changes_leaves_the_old_or_the_new_state": ("canal-meta-20",),
    },
    "TestMemory": {
        "test_where_a_get_starts": ("canal-meta-15",),
    },
    "TestZooKeeper": {
        "test_random_changes_and_reopenings_end_as_in_memory": ("canal-meta-16",),
        "test_everything_is_there_when_it_is_opened_again": ("canal-meta-18",),
    },
    "TestSync": {
        "test_what_was_put_is_there_after_reopening": ("canal-ring-34",),
        "test_puts_from_many_threads_stay_whole": ("rocketmq-log-6",),
    },
    "TestItemsize": {
        "test_a_batch_never_holds_a_part_of_a_transaction": ("canal-ring-4",),
        "test_a_list_is_put_whole_or_not_at_all": ("canal-ring-13",),
        "test_a_get_waits_for_a_whole_batch": ("canal-ring-14",),
        "test_the_first_transaction_is_returned_whatever_its_size": ("canal-ring-14",),
    },
    "TestMemsize": {
        "test_a_transaction_that_never_fits_is_an_error_at_once": ("canal-ring-8",),
        "test_a_list_that_never_fits_is_an_error_at_once": ("canal-ring-8",),
        "test_a_put_waits_for_room_until_an_ack": (
            "canal-ring-9",
            "canal-ring-29",
        ),
        "test_a_put_that_waits_is_not_overtaken": ("canal-ring-9",),
        "test_a_put_times_out": ("canal-ring-10",),
        "test_try_put_does_not_wait": ("canal-ring-11",),
        "test_putting_nothing_is_done_at_once": ("canal-ring-12",),
        "test_a_full_store_still_ignores_what_it_has": ("canal-ring-12",),
        "test_put_and_get_do_not_wait_for_each_other": ("canal-ring-16",),
        "test_a_get_returns_what_there_is_after_its_time_out": ("canal-ring-17",),
        "test_try_get_does_not_wait": ("canal-ring-18",),
        "test_a_batch_is_as_large_as_asked_for": ("canal-ring-19",),
        "test_a_get_goes_on_after_the_last_that_was_returned": ("canal-ring-19",),
        "test_a_get_from_a_position_begins_after_it": ("canal-ring-20",),
        "test_a_get_from_an_acked_position_begins_after_the_last_ack": ("canal-ring-20",),
        "test_a_get_from_a_position_included": ("canal-ring-21",),
        "test_the_first_event_after_a_subscription_is_not_lost": (
            "canal-ring-21",
            "canal-ring-31",
        ),
        "test_the_positions_of_a_batch": (
            "canal-ring-22",
            "canal-ring-24",
        ),
        "test_a_position_carries_journal_offset_time_server_and_gtid": ("canal-ring-23",),
        "test_a_ddl_comes_alone": (
            "canal-ring-24",
            "canal-ring-25",
        ),
        "test_a_get_does_not_wait_for_what_a_ddl_forbids": ("canal-ring-25",),
        "test_an_ack_needs_exactly_this_position": ("canal-ring-28",),
        "test_an_ack_of_what_was_not_returned_is_an_error": ("canal-ring-28",),
        "test_an_ack_twice_is_an_error": ("canal-ring-28",),
        "test_an_ack_covers_what_lies_before": ("canal-ring-29",),
        "test_a_rollback_returns_again_what_was_not_acked": ("canal-ring-30",),
        "test_a_rollback_from_a_batch_on": ("canal-ring-30",),
        "test_the_first_position_is_the_oldest_not_acked": ("canal-ring-31",),
        "test_an_empty_store_has_no_positions": ("canal-ring-31",),
        "test_the_latest_position_is_the_newest": ("canal-ring-32",),
        "test_clean_all_removes_everything": ("canal-ring-33",),
        "test_sequence_numbers_still_rise_after_clean_all": ("canal-ring-33",),
    },
}
