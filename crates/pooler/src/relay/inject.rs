//! Messages of Hawser's own among a client's.
//!
//! A query before the client's first message goes in the same write: no round trip. It is a simple
//! query of its own (one implicit transaction: all of it or nothing), because messages of the
//! extended protocol without a Sync would be part of the client's own first transaction, and undone
//! with it. Where that is acceptable, they are used ([`crate::parts::settings::within_pipeline`]).

use crate::relay::backend::Backend;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::wire::build;

/// Name of the statement that changes settings within a pipeline.
const SETTING_STATEMENT: &[u8] = b"hawser_settings";

impl<S: Socket> Backend<S> {
    /// Appends commands without which the client's message must not run.
    ///
    /// They are a transaction block: where one fails, the block stays open and fails what follows;
    /// `ClientMessage::open` sees to a message that would end it. `begin` itself is sent by the
    /// extended protocol, without a Sync: where it fails, the server ignores what follows
    /// (`ignore_till_sync`, postgres.c). It costs the server 1 us more than in the same Query.
    /// `begin`: the text of its Parse, up to the types of its parameters.
    pub(crate) fn inject_block(&mut self, begin: &[u8], mut text: Vec<u8>, out: &mut Vec<u8>) {
        self.session.begin_applying();
        build::parse(out, b"", begin);
        build::bind_plain(out, b"", b"");
        build::execute(out, b"");
        text.extend_from_slice(b";COMMIT");
        self.inject_query(&text, out);
    }

    /// Appends a simple query of Hawser's.
    pub(crate) fn inject_query(&mut self, text: &[u8], out: &mut Vec<u8>) {
        build::query(out, text);
        self.request(Request::InjectedQuery);
        // A simple query removes the unnamed statement.
        self.prepared.unnamed.taken_by_query();
    }

    /// Appends a question about the session.
    pub(crate) fn inject_question(&mut self, text: &[u8], out: &mut Vec<u8>) {
        build::query(out, text);
        self.request(Request::InjectedQuestion);
        self.prepared.unnamed.taken_by_query();
    }

    /// Appends a command of Hawser's: within its client's pipeline, if one is in flight. `beside`:
    /// only the server knows its client's unnamed statement, which a simple query would remove.
    pub(crate) fn inject_command(&mut self, command: Vec<u8>, beside: bool, out: &mut Vec<u8>) {
        if self.requests.is_in_pipeline() {
            self.run_within_pipeline(command, out);
        } else if beside {
            self.run_within_pipeline(command, out);
            out.extend_from_slice(&build::SYNC);
            self.request(Request::InjectedSync);
        } else {
            self.inject_query(&command, out);
        }
    }

    /// Appends messages that run a statement of Hawser's as part of the client's pipeline.
    pub(crate) fn run_within_pipeline(&mut self, text: Vec<u8>, out: &mut Vec<u8>) {
        self.run_in_pipeline(text, Request::Injected, out);
    }

    /// The same; its Bind and its Execute are answered by `owed`.
    pub(crate) fn run_in_pipeline(&mut self, mut text: Vec<u8>, owed: Request, out: &mut Vec<u8>) {
        text.extend_from_slice(&[0; 3]);
        build::parse(out, SETTING_STATEMENT, &text);
        build::bind_plain(out, SETTING_STATEMENT, SETTING_STATEMENT);
        build::execute(out, SETTING_STATEMENT);
        // The portal outlives its statement, and the next change needs the name.
        build::close_portal(out, SETTING_STATEMENT);
        build::close_statement(out, SETTING_STATEMENT);
        self.request(Request::InjectedParse { statement: 0 });
        for owed in [owed, owed, Request::Injected, Request::Injected] {
            self.request(owed);
        }
    }
}
