//! Inputs that once failed.

use super::driver;
use super::shrink::from_hex;

/// Plays an input, given in hexadecimal.
fn kept(hex: &str) {
    if let Err(wrong) = driver::play(&from_hex(hex), false) {
        panic!("{wrong}");
    }
}

#[test]
fn nothing_at_all() {
    kept("");
    kept("000000");
}

/// [Execute that fails, Sync, Parse, Flush]: the error forgot that the Parse had no Sync yet.
#[test]
fn a_backend_was_given_back_with_a_pipeline_open_after_a_failed_one() {
    kept("000000 000000 0c0000 0015d7 0b0000 000044");
}

/// The marker of CopyData that came after the last Sync stayed, and the backend was never free.
#[test]
fn stray_copy_data_after_a_sync_kept_the_backend_for_ever() {
    kept("000000 000000 0c0000 001500 000008 0000ac");
    kept("000000 00001c 000000 0c0000 000f00 00004d");
}

/// The first ReadyForQuery closed the books of a RESET that was queued after it.
#[test]
fn a_pipelined_reset_lost_the_clients_start_values() {
    kept("000000 000012 000000 000091");
    kept("000000 000012 0000cc 000000");
    kept("000000 000000 0000c7 0000ca");
}

/// The same, with a DISCARD ALL that ended the pin of a later statement.
#[test]
fn a_pipelined_discard_let_sql_prepared_statements_and_temporary_tables_leak() {
    kept("000000 000000 000092 000066");
    kept("000000 000000 000092 0000d0");
    kept("000000 000000 0000e9 000066 000092");
}

/// [Parse, Sync, Query DEALLOCATE] reached the server, which has the statement by another name.
#[test]
fn a_pipelined_deallocate_did_not_find_its_statement() {
    kept("000000 000000 00003f 0000a2");
}

/// [Parse that fails, Sync, Parse of the same name, Sync].
#[test]
fn a_name_was_refused_while_its_first_parse_was_still_to_fail() {
    kept("000000 000000 000010 00003f");
}

/// Long statements go by the client's names, short ones by shared names: a name was given twice.
#[test]
fn a_long_statement_and_a_short_one_had_the_same_name() {
    kept("000000 000000 000064 00009e");
    kept("000000 000000 00002a 00002a");
}

/// Settings changed and changed back around a Parse, twice in a pipeline: 42P03.
#[test]
fn the_portal_that_changes_a_setting_was_in_its_own_way() {
    kept("001d00 000000 00002f 0000e4 000000 000000 0000e4 00006c");
}

/// [Bind that fails], its error, [Parse, Sync]: the server had skipped the Parse.
#[test]
fn what_the_server_skipped_was_noted_as_prepared() {
    kept("000000 000000 0000de 00001e 00003f 000005");
}

/// A client left with messages waiting; its backend was held for ever.
#[test]
fn a_held_backend_was_full_for_its_next_client() {
    kept("000000 000000 150000 000000 00001c 1b0000 150000 0b0000");
}

/// Two clients with different settings gave a backend to and fro without end.
#[test]
fn settings_sent_first_held_the_statement_that_they_are_for() {
    kept("000000 00001a 0000cf 0c0000 001b1c");
}

/// Whether a known Parse succeeds hangs on a transaction whose state is still to come.
#[test]
fn a_parse_answered_here_succeeded_in_a_failed_transaction() {
    kept("000000 000000 0000a7 0000b3 0000d9 0000dd");
    kept("000000 000000 000079 00005f 000079 00003f 00007c 000077 0000ed");
}

/// [.. COPY, Sync, CopyDone, Parse, Sync] sent at once: the first Sync is ignored, the last not.
#[test]
fn a_pipeline_after_a_copy_was_thought_to_be_open() {
    kept("000000 000000 000016 00004e 00003f 0000dc");
}

/// [Parse that fails, Sync, Close, Sync]: the name was gone when the error came, and the backend
/// was thought to have the statement.
#[test]
fn a_failed_parse_whose_name_was_closed_was_noted_as_prepared() {
    kept("000000 000000 000084 00007c 0000be");
}

/// [Parse, Bind, Execute that fails, Parse, Sync], all unnamed: the server kept the first.
#[test]
fn an_unnamed_statement_of_another_client_was_bound() {
    kept("000000 000000 0c0000 000035 0c0000 0008e5");
}

/// [Query SET TimeZone, Parse] at once: another client got a statement parsed under that zone.
#[test]
fn a_statement_parsed_after_a_pipelined_set_was_shared_under_the_settings_before_it() {
    kept("000000 000000 0c0000 0013c7 0b0000 0c0000 00192f 0000b3 001fde 000f00");
    kept("001c00 000000 000019 000000 0000a3 0000ca 0000a4 000000");
}

/// The settings that a RESET restores were sent before a DEALLOCATE, and hid that it could be
/// answered here.
#[test]
fn a_deallocate_after_restored_settings_did_not_find_its_statement() {
    kept("000000 00001c 000022 000005 000056 000068");
}

/// LISTEN, then an UNLISTEN that is cancelled.
#[test]
fn an_unlisten_that_failed_let_a_listen_leak() {
    kept(
        "0b0000 000000 160000 0c0000 160000 0c0000 00b000 001000 170000 1a0000 0a7600 1a0000 008c20 1e4719 150000 000f5b",
    );
}

/// Bytes and the end of the stream in one event: the end was never seen.
#[test]
fn a_server_that_said_something_and_closed_stayed_in_the_pool() {
    kept("00000f 000000 160000 000000 1b0000 14000a 1c1600");
}

/// The same, after a message that was held: its client got no error either.
#[test]
fn a_server_that_said_farewell_and_closed_held_its_client_for_ever() {
    kept("000000 000000 000050 0afd5b 0000c2 000000 000027");
}

/// A DISCARD ALL failed in a transaction, and the next client's answers were taken for its success.
#[test]
fn a_statement_that_a_failed_discard_left_was_not_closed_before_it_was_prepared() {
    kept(
        "000000 000000 0000a3 000001 00001e 0c0000 0c0000 000002 0be900 0000a4 0c0000 008000 0080ad",
    );
}

/// The engine assumed that an error before later Parses of it had kept the server from them.
#[test]
fn an_unnamed_statement_after_a_failed_pipeline_was_noted_under_old_settings() {
    kept("000000 000000 000065 0000c6 0000f1 0000ab");
}

/// [Describe that fails, Parse, Query DEALLOCATE ALL]: the name came back with the others.
#[test]
fn a_name_that_was_skipped_came_back_with_a_deallocate_that_was_skipped() {
    kept("000000 000000 00006c 0000a3 000059 00003f 000069");
}

/// [.. COPY, Sync, CopyDone, Terminate] at once: the Sync is ignored, and no answer came to wait for.
#[test]
fn a_client_that_said_goodbye_after_a_copy_kept_its_backend_for_ever() {
    kept("000000 000000 000050 000088 0000ad");
    kept("000000 000000 000050 0a0039 0a0000");
    kept("000000 000000 00004c 0acbad");
}

/// A Bind after a DEALLOCATE ALL that fails.
#[test]
fn a_name_was_thought_to_be_gone_before_the_deallocate_was_answered() {
    kept("000000 000000 00003f 00003b 000083 00001f 0000b4");
}

#[test]
fn the_unnamed_statement_is_gone_after_a_query_that_was_skipped() {
    kept("000000 000000 000001 000043 0000ef 0000a3 000000 000064 000037");
}

/// Parsed under one TimeZone, bound under another on a backend that had lost it.
#[test]
fn the_unnamed_statement_was_prepared_again_under_other_settings() {
    kept("000000 000000 0c0000 0000b2 001700 000036 0000ab");
}

/// Half a message of the server came between an answer and the end of a cancel request.
#[test]
fn a_backend_with_half_a_message_was_given_back_after_a_cancel() {
    kept(
        "000000 000000 150000 000000 1b0000 180000 000073 000000 0c0000 0e0005 1e0000 180000 170000 14000f 150000",
    );
}

/// An unnamed Parse after a pipelined SET was recorded under the settings before it.
#[test]
fn the_unnamed_statement_after_a_pipelined_set_was_prepared_again_under_old_settings() {
    kept("000000 000000 0000e4 000004 00002f 0000e5 0c0000 001100");
    kept("000000 000000 0c0000 000136 0c0000 005000 000a62 00e80c 004971");
}

#[test]
fn a_set_local_ends_with_its_transaction_when_a_statement_is_prepared_again_in_it() {
    kept("1c0000 000000 00002f 000000 000068 0000d3 000030 0c0000 001f00 000002");
}

/// DISCARD SEQUENCES as a query of ours took away what only the server knew.
#[test]
fn the_unnamed_statement_that_is_not_shared_was_gone_after_a_function_call() {
    kept("000b00 000000 000034 000097 0000e5");
}

#[test]
fn a_taken_name_in_a_failed_transaction_is_judged_after_the_text() {
    kept("000000 000000 0000ed 000001 0000cc 0000f8");
}

/// Two simple queries, or one after a COPY, removed what the server still had, because it ignored
/// them.
#[test]
fn the_unnamed_statement_was_gone_after_queries_that_the_server_ignored() {
    kept("000000 000000 00007e 000030 000000 000000 0000d9 000037");
    kept("000000 000000 000016 0000fd 000000 000011 0000ab");
}

/// A Flush preceded its Parse: nothing that sets anything.
#[test]
fn a_statement_was_prepared_again_under_what_was_set_after_it() {
    kept("000000 000000 00007e 0000a3 000018 000030 000000");
}

#[test]
fn a_deallocate_left_the_unnamed_portal_that_a_simple_query_takes_away() {
    kept("000000 000000 0000e1 000059 00007f");
}

/// Its Parse had failed, and the Query after it was ignored: that brought it back.
#[test]
fn an_unnamed_statement_that_was_never_prepared_was_prepared_again() {
    kept("000000 000000 0000e9 000049 00007e 000000 000040 0000e5");
}

/// Parsed after a SET that was not answered yet, and removed by a Query that was ignored.
#[test]
fn an_unnamed_statement_that_came_back_had_the_settings_before_a_pipelined_set() {
    kept("000000 000000 000052 000062 000032 000000 0000ef 000071");
}
