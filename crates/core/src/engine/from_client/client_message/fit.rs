//! Whether what the server has prepared is what a client's own Parse gave, as far as the client knows it.
//!
//! # The trap
//! A server fixes the types of parameters and columns at a Parse. Clients share statements, and each server
//! connection has its own Parse of them: the one that a client comes to may be of another time than its
//! own. Its rows would then have another shape than the one that the client has been told.
//!
//! # Model
//! ```text
//! the client has been told   on the server                  what is done
//! nothing                    as new as its own Parse        it is used
//! nothing                    older                          it is prepared anew
//! a description              described alike                it is used
//! a description              nothing; or of an earlier      Parse, Describe, Flush; the message waits
//!                            pipeline, and not described
//!                            yet, or otherwise
//! a description              described otherwise, just now  other parameters: the client's statement is
//!                                                           the one with these types from here on, as
//!                                                           the server's own would keep them
//!                                                           other rows: the server's own error, 0A000
//! ```
//! The error is made as those of [`super::aborted`]: a message that the server refuses goes in the place
//! of the one at hand, so all that depends on an error follows of itself.
//!
//! # Cost  one round trip for each statement that a client has been told of, once on each server
//!         connection. Also where a Describe of the portal follows, and would tell it anew: the server
//!         refuses its Bind all the same.

use std::sync::Arc;

use super::ClientMessage;
use crate::engine::from_client::client_message::aborted::EMPTY;
use crate::engine::halt::Halt;
use crate::engine::names::ClientStatement;
use crate::engine::request_queue::{Change, Comparing, Refusal, Request};
use crate::engine::socket::Socket;
use crate::pool::backend_statements::Prepared;
use crate::pool::description::{Seen, Shape};
use crate::pool::statement::{Statement, Unnamed};
use crate::wire::{TransactionStatus, backend, build, frame, frontend};

/// What the server says where the rows of a statement are others than at its Parse
/// (`RevalidateCachedQuery`, plancache.c). Drivers know it by the routine's name.
pub(in crate::engine) const CHANGED: &[u8] =
    b"SERROR\0VERROR\0C0A000\0Mcached plan must not change result type\0\
    Fplancache.c\0RRevalidateCachedQuery\0\0";

/// The end of what a message needs to be answered.
const FLUSH: [u8; 5] = [frontend::FLUSH, 0, 0, 0, 4];

/// Why a statement that is there is not used as it is.
enum Lack {
    /// It is none.
    Nothing,
    /// It is of an earlier time than the client's own Parse.
    IsOlder,
    /// What it is like is not known, but will be.
    Description,
    /// It is not what the client has been told, but of an earlier pipeline.
    IsOther,
    /// It is not what the client has been told.
    HasChanged,
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Sees to it that the statement of this name is on the server as the client knows it, or is not there.
    /// `None`: it is another now, and the message at hand is to be refused.
    pub(super) fn fit(
        &mut self,
        name: &[u8],
        mut named: ClientStatement,
    ) -> Result<Option<ClientStatement>, Halt> {
        loop {
            let mut told = named.seen.told();
            if named.statement.describes_rows_anew() {
                told.rows = 0;
            }
            let copy = self.backend.prepared.statements().get(named.statement.id);
            let lack = match copy {
                Some(copy) if told == Shape::default() => {
                    if copy.epoch >= named.epoch {
                        Lack::Nothing
                    } else {
                        Lack::IsOlder
                    }
                }
                None if told == Shape::default() => Lack::Nothing,
                None => Lack::IsOther,
                Some(copy) => lack_of(copy, told, self.backend.requests.pipeline(), || {
                    self.asks_about(&named)
                }),
            };
            match lack {
                Lack::Nothing => break,
                _ if !self.prepares() => break,
                Lack::IsOlder => {
                    self.backend.prepared.statements_mut().mark_stale(named.statement.id);
                    break;
                }
                Lack::Description if self.asks_about(&named) => {
                    self.backend.prepared.forget_replay(); // the message comes again
                    self.client.serving.hold();
                    return Err(Halt::Full);
                }
                Lack::Description => return Err(self.look_at(&named)),
                Lack::IsOther => {
                    self.backend.prepared.statements_mut().mark_stale(named.statement.id);
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

    /// Whether the server prepares statements where the message at hand comes to it. Where it does not, it tells
    /// nothing of what gives rows either.
    pub(super) fn prepares(&self) -> bool {
        self.backend.from_server.status() != TransactionStatus::Failed
            && !self.backend.requests.is_copying_in()
            && !self.backend.requests.is_skipping_to_sync()
    }

    /// Whether the server has been asked what the statement is like, and has not answered.
    fn asks_about(&self, named: &ClientStatement) -> bool {
        let asked = Request::InjectedDescribe { statement: named.statement.id };
        self.backend.requests.contains(asked)
    }

    /// Asks the server what the statement is like, once it has it. The message at hand waits.
    fn look_at(&mut self, named: &ClientStatement) -> Halt {
        let Statement { id, name, .. } = &*named.statement;
        let asked = self
            .hold()
            .and_then(|()| self.bring(&named.statement))
            .and_then(|()| self.ask_for_description(name, *id, None));
        self.backend.prepared.statements_mut().ask(*id, self.backend.requests.pipeline());
        self.client.serving.hold();
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
        self.backend.prepared.forget_replay(); // the message comes again
        Ok(())
    }

    /// The body of a Parse with the types that the client has been told, if these are not in it already.
    fn typed(&self, body: &[u8], seen: &Seen) -> Option<Vec<u8>> {
        let types = seen.types()?;
        let (text, own) = frame::take_string(body)?;
        (own != types).then(|| [text, b"\0", types].concat())
    }

    /// The message at hand is refused with the server's own error for a statement that has changed:
    /// `start` is what of its body comes before the statement's name. Of a Describe the server answers the
    /// first half (`exec_describe_statement_message`, postgres.c): what the client has been told of the
    /// parameters, in `described`.
    pub(super) fn refuse_changed(
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
        if let Some(seen) = described.filter(|seen| seen.told().parameters != 0) {
            build::message(&mut error, backend::PARAMETER_DESCRIPTION, |out| {
                out.extend_from_slice(seen.types().unwrap_or(&[0, 0]));
            });
        }
        build::message(&mut error, backend::ERROR, |out| out.extend_from_slice(CHANGED));
        self.backend.request_with(Request::Refused, Some(Refusal::of_all(error)));
        Ok(())
    }

    /// The client's unnamed statement is prepared anew. Of what it has been told, this is to be as before.
    /// Whether it is known now; if not, it is found out behind, or the message waits.
    pub(super) fn compare_unnamed(&mut self, unnamed: &Arc<Unnamed>) -> Result<(), Halt> {
        let Some(seen) = unnamed.told().filter(|seen| seen.told() != Shape::default()) else {
            return Ok(());
        };
        // A moment ago it was so: a connection that is lost costs less than each Bind of those who
        // prepare, look at the description, and bind on another connection.
        let waits = self.backend.pool.schema_epoch_at(self.now) > unnamed.epoch
            && !self.backend.requests.is_copying_in();
        let shape = Shape::default();
        let comparing = Comparing { seen: seen.clone(), waits, shape };
        self.ask_for_description(b"", 0, Some(Change::Compares(Box::new(comparing))))?;
        if waits { self.wait() } else { Ok(()) }
    }

    /// The client's unnamed statement is another now than the one that the client has been told of. Whether
    /// the message at hand is to be refused.
    pub(super) fn unnamed_has_changed(&mut self) -> bool {
        if !self.backend.prepared.unnamed_mut().take_changed() {
            return false;
        }
        self.backend.prepared.unnamed_mut().forget();
        let Some(unnamed) = self.unnamed().cloned() else { return false };
        let Some(seen) = unnamed.told() else { return false };
        match self.typed(&unnamed.body, seen) {
            None => true,
            Some(body) => {
                let again = unnamed.with_body(&body);
                self.backend
                    .prepared
                    .unnamed_mut()
                    .restate(self.client.prepared.unnamed_mut(), again);
                false
            }
        }
    }
}

/// What a statement that is there lacks for a client that has been told something of it. `asks`: the server
/// has been asked, and has not answered; that takes a look at all answers owed, so it is asked last.
fn lack_of(copy: &Prepared, told: Shape, pipeline: u64, asks: impl FnOnce() -> bool) -> Lack {
    let shape = copy.shape;
    let unknown = !shape.is_known_for(told);
    if copy.pipeline != pipeline {
        // (If it has become stale meanwhile, to describe it would fail.)
        return if !unknown && shape.fits(told) { Lack::Nothing } else { Lack::IsOther };
    }
    if unknown && (asks() || copy.asked_in != Some(pipeline)) {
        Lack::Description
    } else if !unknown && shape.fits(told) {
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
        assert!(crate::engine::replay::is_stale_or_lost(CHANGED));
        assert_eq!(field(CHANGED, b'M'), Some(&b"cached plan must not change result type"[..]));
    }
}
