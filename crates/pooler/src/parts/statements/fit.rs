//! Whether the server's copy of a statement is what a client's own Parse gave, as far as the client
//! knows.
//!
//! # The trap
//! A server fixes the types of parameters and columns at a Parse. Clients share statements, and
//! each server connection has its own Parse of them, maybe from another time than the client's own.
//! Its rows would then have another shape than the one that was described to the client.
//!
//! # Model
//! ```text
//! the client has   on the server              what is done
//! nothing          as new as its own Parse    it is used
//! nothing          older                      it is prepared again
//! a description    described alike            it is used
//! a description    nothing; or from an        Parse, Describe, Flush; the message waits
//!                  earlier pipeline, and not
//!                  described yet, or in
//!                  another way
//! a description    described in another way   other parameters: the client's statement is the
//!                  just now                   one with these types from now on, as the server's
//!                                             own would keep them
//!                                             other rows: the server's own error, 0A000
//! ```
//! The error is made as those of [`crate::parts::statements::aborted`]: a message that the server refuses is sent in
//! place of the current one, so everything that depends on an error follows.
//!
//! # Cost  one round trip for each statement that a client has a description of, once on each
//!         server connection. Also where a Describe of the portal follows, and would describe it
//!         again: the server refuses its Bind nevertheless.

use std::sync::Arc;

use crate::parts::statements::aborted::EMPTY;
use crate::parts::statements::client_names::ClientStatement;
use crate::parts::statements::description::{Seen, Shape};
use crate::parts::statements::prepared_on_server::Prepared;
use crate::parts::statements::shared::{Statement, Unnamed};
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::request_queue::{Change, Comparing, Refusal, Request};
use crate::relay::socket::Socket;
use crate::wire::{TransactionStatus, backend, build, frame, frontend};

/// The server's error for a statement whose rows have changed since its Parse
/// (`RevalidateCachedQuery`, plancache.c). Drivers know it by the routine's name.
pub(crate) const CHANGED: &[u8] =
    b"SERROR\0VERROR\0C0A000\0Mcached plan must not change result type\0\
    Fplancache.c\0RRevalidateCachedQuery\0\0";

/// Makes the server answer a message without a Sync.
pub(crate) const FLUSH: [u8; 5] = [frontend::FLUSH, 0, 0, 0, 4];

/// Why the server's copy of a statement is not used as it is.
enum Lack {
    /// It is used.
    Nothing,
    /// It is older than the client's own Parse.
    IsOlder,
    /// Its description is not known yet.
    Description,
    /// It is not as described to the client, but of an earlier pipeline.
    IsOther,
    /// It is not as described to the client.
    HasChanged,
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Ensures that the server has the statement of this name as the client knows it, or not at
    /// all. `None`: it has changed, and the current message is to be refused.
    pub(crate) fn fit(
        &mut self,
        name: &[u8],
        mut named: ClientStatement,
    ) -> Result<Option<ClientStatement>, Halt> {
        loop {
            let mut described = named.seen.described();
            if named.statement.redescribes_rows {
                described.rows = 0;
            }
            let copy = self.backend.prepared.statements.get(named.statement.id);
            let lack = match copy {
                Some(copy) if described == Shape::default() => {
                    if copy.epoch >= named.epoch {
                        Lack::Nothing
                    } else {
                        Lack::IsOlder
                    }
                }
                None if described == Shape::default() => Lack::Nothing,
                None => Lack::IsOther,
                Some(copy) => lack_of(copy, described, self.backend.requests.pipeline(), || {
                    self.asks_about(&named)
                }),
            };
            match lack {
                Lack::Nothing => break,
                _ if !self.prepares() => break,
                Lack::IsOlder => {
                    self.backend.prepared.statements.mark_stale(named.statement.id);
                    break;
                }
                Lack::Description if self.asks_about(&named) => {
                    self.backend.prepared.replay.forget(); // the message is processed again
                    self.client.serving.held = true;
                    return Err(Halt::Full);
                }
                Lack::Description => return Err(self.look_at(&named)),
                Lack::IsOther => {
                    self.backend.prepared.statements.mark_stale(named.statement.id);
                    return Err(self.look_at(&named));
                }
                Lack::HasChanged => {
                    let statement = &named.statement;
                    let Some(body) = self.typed(&statement.body, &named.seen) else {
                        return Ok(None);
                    };
                    let typed =
                        self.backend.statement_of(&body, statement.basis, &statement.settings);
                    let table = &self.backend.pool.statements;
                    let statement = table.to_be_run_under(typed, &statement.run_under);
                    self.client.restate(name, &statement);
                    named.statement = statement;
                }
            }
        }
        Ok(Some(named))
    }

    /// Whether the server would prepare a statement at the current message. If not, it does not
    /// describe statements that give rows either.
    pub(crate) fn prepares(&self) -> bool {
        self.backend.from_server.status() != TransactionStatus::Failed
            && !self.backend.requests.is_copying_in()
            && !self.backend.requests.is_skipping_to_sync()
    }

    /// Whether the server has been asked to describe the statement, and has not answered.
    fn asks_about(&self, named: &ClientStatement) -> bool {
        let asked = Request::InjectedDescribe { statement: named.statement.id };
        self.backend.requests.contains(asked)
    }

    /// Asks the server to describe the statement, once it has it. The current message waits.
    fn look_at(&mut self, named: &ClientStatement) -> Halt {
        let Statement { id, name, .. } = &*named.statement;
        let asked = self
            .hold()
            .and_then(|()| self.bring(&named.statement))
            .and_then(|()| self.ask_for_description(name, *id, None));
        self.backend.prepared.statements.ask(*id, self.backend.requests.pipeline());
        self.client.serving.held = true;
        asked.err().unwrap_or(Halt::Full)
    }

    fn ask_for_description(
        &mut self,
        name: &[u8],
        statement: u64,
        change: Option<Change>,
    ) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        build::message(&mut self.passage.out, frontend::DESCRIBE, |out| {
            out.push(b'S');
            build::string(out, name);
        });
        self.backend.request_with(Request::InjectedDescribe { statement }, change);
        self.passage.out.extend_from_slice(&FLUSH);
        self.backend.prepared.replay.forget(); // the message is processed again
        Ok(())
    }

    /// The body of a Parse with the types that were described to the client, if it lacks them.
    fn typed(&self, body: &[u8], seen: &Seen) -> Option<Vec<u8>> {
        let types = seen.types()?;
        let (text, own) = frame::take_string(body)?;
        (own != types).then(|| [text, b"\0", types].concat())
    }

    /// Refuses the current message with the server's own error for a statement that has changed:
    /// `start` is the part of its body before the statement's name. Of a Describe the server
    /// answers the first half (`exec_describe_statement_message`, postgres.c): the parameters as
    /// the client knows them, in `described`.
    pub(crate) fn refuse_changed(
        &mut self,
        start: &[u8],
        name: &[u8],
        described: Option<&Seen>,
    ) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        build::close_statement(&mut self.passage.out, EMPTY);
        self.backend.request(Request::Injected);
        self.pass_with(start.len() + name.len() + 1, |out| {
            out.extend_from_slice(start);
            build::string(out, EMPTY);
        })?;
        let mut error = Vec::new();
        if let Some(seen) = described.filter(|seen| seen.described().parameters != 0) {
            build::message(&mut error, backend::PARAMETER_DESCRIPTION, |out| {
                out.extend_from_slice(seen.types().unwrap_or(&[0, 0]));
            });
        }
        build::message(&mut error, backend::ERROR, |out| out.extend_from_slice(CHANGED));
        self.backend.request_with(Request::Refused, Some(Refusal::of_all(error)));
        Ok(())
    }

    /// The client's unnamed statement is prepared again, and must be as it was described to the
    /// client. If that is not known now, it is found out afterwards, or the message waits.
    pub(crate) fn compare_unnamed(&mut self, unnamed: &Arc<Unnamed>) -> Result<(), Halt> {
        let Some(seen) = unnamed.described().filter(|seen| seen.described() != Shape::default())
        else {
            return Ok(());
        };
        // A moment ago it was so: losing a connection costs less than delaying each Bind of clients
        // that prepare, look at the description, and bind on another connection.
        let waits = self.backend.pool.schema_epoch_at(self.now) > unnamed.epoch
            && !self.backend.requests.is_copying_in();
        let shape = Shape::default();
        let comparing = Comparing { seen: seen.clone(), waits, shape };
        self.ask_for_description(b"", 0, Some(Change::Compares(Box::new(comparing))))?;
        if waits { self.wait() } else { Ok(()) }
    }

    /// Whether the client's unnamed statement has changed since it was described to the client, so
    /// that the current message is to be refused.
    pub(crate) fn unnamed_has_changed(&mut self) -> bool {
        if !self.backend.prepared.unnamed.take_changed() {
            return false;
        }
        self.backend.prepared.unnamed.forget();
        let Some(unnamed) = self.unnamed().cloned() else { return false };
        let Some(seen) = unnamed.described() else { return false };
        match self.typed(&unnamed.body, seen) {
            None => true,
            Some(body) => {
                let again = unnamed.with_body(&body);
                self.backend.prepared.unnamed.restate(&mut self.client.prepared.unnamed, again);
                false
            }
        }
    }
}

/// What the server's copy of a statement lacks for a client that has a description. `asks`: the
/// server has been asked, and has not answered; that walks all outstanding requests, so it is
/// checked last.
fn lack_of(copy: &Prepared, described: Shape, pipeline: u64, asks: impl FnOnce() -> bool) -> Lack {
    let shape = copy.shape;
    let unknown = !shape.is_known_for(described);
    if copy.pipeline != pipeline {
        // (If it has become stale meanwhile, a Describe would fail.)
        return if !unknown && shape.fits(described) { Lack::Nothing } else { Lack::IsOther };
    }
    if unknown && (asks() || copy.asked_in != Some(pipeline)) {
        Lack::Description
    } else if !unknown && shape.fits(described) {
        Lack::Nothing
    } else {
        Lack::HasChanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::error::field;

    #[test]
    fn the_error_is_the_servers_own() {
        assert!(crate::parts::statements::replay::is_stale_or_lost(CHANGED));
        assert_eq!(field(CHANGED, b'M'), Some(&b"cached plan must not change result type"[..]));
    }
}
