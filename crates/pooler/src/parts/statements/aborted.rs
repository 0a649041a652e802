//! What a client can ask of prepared statements in a failed transaction.
//!
//! # The trap
//! In a failed transaction a server prepares nothing but an empty text, and statements that end the
//! transaction. But it goes on to describe statements that give no rows
//! (`exec_describe_statement_message`, postgres.c), to report that a name is taken
//! (`StorePreparedStatement`, prepare.c), and that a Bind has another number of parameters than its
//! statement (`exec_bind_message`, which checks the transaction after that): of statements that it
//! has. A backend that lacks one gets an empty text in its place, or, for the last, a Bind that it
//! refuses, and whose error is replaced. (After a message that may have ended that transaction in
//! the same pipeline, too: the answers are the same there.)

use crate::parts::statements::client_names::significant;
use crate::parts::statements::shared::Statement;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::request_queue::{Refusal, Request};
use crate::relay::socket::Socket;
use crate::session::commands::begins_with_any;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::{TransactionStatus, build, frame};

/// Name of the empty statement.
pub(crate) const EMPTY: &[u8] = b"hawser_gone";

/// First words of statements that give no rows and take no parameters.
const ROWLESS: [&[u8]; 25] = [
    b"alter",
    b"analyze",
    b"begin",
    b"checkpoint",
    b"close",
    b"comment",
    b"create",
    b"deallocate",
    b"declare",
    b"discard",
    b"drop",
    b"grant",
    b"listen",
    b"lock",
    b"notify",
    b"prepare",
    b"reindex",
    b"release",
    b"reset",
    b"revoke",
    b"savepoint",
    b"set",
    b"truncate",
    b"unlisten",
    b"vacuum",
];

/// Whether a statement, by the text and types of its Parse, certainly gives no rows and takes no
/// parameters.
fn is_bare(body: &[u8]) -> bool {
    let Some((text, types)) = frame::take_string(body) else { return false };
    types == [0, 0] && begins_with_any(text, &ROWLESS)
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Whether the server lacks a statement, and is in no state to prepare it.
    pub(crate) fn cannot_bring(&mut self, statement: &Statement) -> bool {
        self.backend.from_server.status() == TransactionStatus::Failed
            && !self.backend.requests.owes_client_ready()
            && !self.backend.prepared.statements.touch(statement.id)
    }

    /// Appends a Parse of an empty statement.
    pub(crate) fn bring_empty(&mut self) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        self.backend.prepared.has_empty = true;
        let out = &mut self.passage.out;
        build::close_statement(out, EMPTY); // it may exist from an earlier use
        build::parse(out, EMPTY, &[0; 3]);
        self.backend.request(Request::Injected);
        self.backend.request(Request::InjectedParse { statement: 0 });
        Ok(())
    }

    /// Binds a statement that does not exist in place of one that has another number of parameters
    /// than the current Bind, which is refused for that. Returns whether that was so.
    pub(crate) fn refuse_bind(
        &mut self,
        portal: &[u8],
        name: &[u8],
        statement: &Statement,
    ) -> Result<bool, Halt> {
        // (After others of its pipeline the transaction may have ended.)
        if self.backend.requests.is_in_pipeline() || !self.cannot_bring(statement) {
            return Ok(false);
        }
        let Some((formats, given)) = self.parameter_counts() else { return Ok(false) };
        let message = if formats > 1 && usize::from(formats) != given {
            format!("bind message has {formats} parameter formats but {given} parameters")
        } else if let Some(count) = self.parameters_of(&statement.body).filter(|n| *n != given) {
            let name = String::from_utf8_lossy(significant(name)).into_owned();
            format!(
                "bind message supplies {given} parameters, but prepared statement \"{name}\" requires {count}"
            )
        } else {
            return Ok(false);
        };
        let mut error = Vec::new();
        ClientError::error(SqlState::PROTOCOL_VIOLATION, message).write(&mut error);
        // A statement that does not exist is refused in any state of the transaction, and nothing
        // remains.
        self.passage.cut(self.backend)?;
        build::close_statement(&mut self.passage.out, EMPTY);
        self.backend.request(Request::Injected);
        self.pass_with(portal.len() + 1 + name.len() + 1, |out| {
            build::string(out, portal);
            build::string(out, EMPTY);
        })?;
        self.backend.request_with(Request::Refused, Some(Refusal::of_all(error)));
        Ok(true)
    }

    /// Lets the server describe the empty statement in place of one that would be described in the
    /// same way. Returns whether it is such a one.
    pub(crate) fn describe_empty(
        &mut self,
        name: &[u8],
        statement: &Statement,
    ) -> Result<bool, Halt> {
        if !is_bare(&statement.body) || !self.cannot_bring(statement) {
            return Ok(false);
        }
        self.bring_empty()?;
        self.pass_with(name.len() + 2, |out| {
            out.push(b'S');
            build::string(out, EMPTY);
        })?;
        self.backend.request(Request::DescribeStatement { statement: 0 });
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_give_rows_or_take_parameters_is_not_bare() {
        for text in
            ["LISTEN one", " set x = 1", "Create table t (a int)", "prepare p(int) as select $1"]
        {
            assert!(is_bare(&[text.as_bytes(), &[0; 3]].concat()), "{text}");
        }
        for text in ["select 1", "show all", "insert into t values ($1)", "explain set", "/**/set"]
        {
            assert!(!is_bare(&[text.as_bytes(), &[0; 3]].concat()), "{text}");
        }
        assert!(!is_bare(b"set x = 1\0\0\x01\0\0\0\x17"));
    }
}
