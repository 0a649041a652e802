//! Rules and the clients of a loop.

use std::sync::Arc;

use crate::ids::Slot;
use crate::lending::priority::Priority;
use crate::parts::rules::{RuleSet, Ruling, Text, Who};
use crate::parts::statements::aborted::EMPTY;
use crate::relay::bulk_orders::Order;
use crate::relay::client::Client;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::from_client::passage::Passage;
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::message::Event;
use crate::relay::request_queue::{Refusal, Request};
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::calls::{Kind as Content, Tokens};
use crate::session::commands::begins_with_any;
use crate::time::Time;
use crate::wire::error::{ClientError, Severity, SqlState, field};
use crate::wire::frame::{HEADER_BYTES, Header};
use crate::wire::{TransactionStatus, build, frame, frontend};

impl<S: Socket> Engine<S> {
    /// Other rules are in force.
    pub(crate) fn put_rules_in_force<H: Host<S>>(
        &mut self,
        host: &mut H,
        rules: Arc<RuleSet>,
        now: Time,
    ) {
        self.rules = rules;
        self.order(host, Order::Judge, None, now);
    }

    /// Looks whether a rule may concern a client, by who it is now.
    pub(crate) fn see_rules_for<H: Host<S>>(&mut self, host: &mut H, slot: Slot) {
        let rules = self.rules.clone();
        let may =
            !rules.rules().is_empty() && self.who_is(slot).is_some_and(|who| rules.concern(&who));
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.serving.set_ruled(may) && client.serving.is_inside() {
            host.call_back(self.client_id(slot));
        }
    }

    /// The same after an answer: its application_name may be another one.
    pub(crate) fn see_rules_again<H: Host<S>>(&mut self, host: &mut H, slot: Slot) {
        if self.rules.name_applications() {
            self.see_rules_for(host, slot);
        }
    }

    /// Who a client is.
    fn who_is(&self, slot: Slot) -> Option<Who<'_>> {
        let client = self.clients.get(slot)?;
        let pool = &self.pools[client.pool as usize].pool;
        let about = &client.record.about;
        Some(Who {
            user: about.user().unwrap_or(&pool.user),
            database: &pool.database,
            application_name: client.session.desired.get(b"application_name").unwrap_or_default(),
            peer: &about.peer,
        })
    }

    /// Judges the next message of a client that a rule concerns. Returns whether it has been answered
    /// with that; else the verdict waits for the message to have its server connection.
    pub(crate) fn judge<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        header: Header,
        passage: &mut Passage<'_>,
        now: Time,
    ) -> bool {
        let rest = passage.rest();
        let body = &rest[HEADER_BYTES..header.total().min(rest.len())];
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if client.backend.as_ref().is_some_and(|backend| {
            backend.requests.is_copying_in() || backend.requests.is_skipping_to_sync()
        }) {
            return false; // the server refuses it, or does not read it
        }
        let Some(text) = client.text_of(header, body) else { return false };
        let text = text.to_vec();
        let prepared = client.prepared_as(&text).map(<[u8]>::to_vec);
        if client.is_between_queries() {
            client.end_ruling(); // nothing of it is in flight any more
        }
        let mut ruling = client.pending_session().ruling.take().unwrap_or_default();
        let rules = self.rules.clone();
        let texts = [Some(&*text), prepared.as_deref()];
        let texts: Vec<Text<'_>> = texts.into_iter().flatten().map(Text::new).collect();
        let Some(who) = self.who_is(slot) else { return false };
        let verdict = ruling.match_all(rules.matching(who, &texts, now));
        ruling.judged = true;
        ruling.priority = rules.priority(who, &texts, now);
        let is_parse = header.kind == frontend::PARSE;
        let audits = verdict.audits.filter(|_| ruling.is_news_to_audit(is_parse, &text));
        let Some(client) = self.clients.get_mut(slot) else { return false };
        client.pending_session().ruling = Some(ruling);
        let refused = verdict.refusal.is_some();
        for rule in &verdict.logs {
            self.say_matched(host, slot, (&rule.name, false), refused, &text);
        }
        if let Some(rule) = audits {
            self.say_matched(host, slot, (&rule.name, true), refused, &text);
        }
        let Some(refusal) = verdict.refusal else { return false };
        host.event(Event::ErrorSent { error: &refusal });
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if client.backend.is_some() {
            client.pending_session().ruling.get_or_insert_default().refusal = Some(refusal);
            return false;
        }
        client.refuse_here(header, &refusal, passage, now);
        true
    }

    fn say_matched<H: Host<S>>(
        &self,
        host: &mut H,
        slot: Slot,
        (rule, audits): (&str, bool),
        refused: bool,
        text: &[u8],
    ) {
        let Some(client) = self.clients.get(slot) else { return };
        let Some(who) = self.who_is(slot) else { return };
        host.event(Event::RuleMatched {
            rule,
            audits,
            refused,
            client: self.client_id(slot),
            about: &client.record.about,
            database: who.database,
            user: who.user,
            application_name: who.application_name,
            text,
        });
    }

    /// A client's query or pipeline has run for longer than a rule allows.
    pub(crate) fn cut_off_by_rule<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.ruling().is_some_and(Ruling::cut_off) {
            self.cancel_query(host, slot, None, now);
        }
        self.rearm(slot, now);
    }
}

impl<S: Socket> Client<S> {
    /// The text that a message brings or runs; `None`: it does neither, or its text is not known.
    fn text_of<'a>(&'a self, header: Header, body: &'a [u8]) -> Option<&'a [u8]> {
        let string = |bytes| frame::take_string(bytes);
        match header.kind {
            frontend::QUERY => Some(string(body).map_or(body, |(text, _)| text)),
            frontend::PARSE => {
                let (_, rest) = string(body)?;
                Some(string(rest).map_or(rest, |(text, _)| text))
            }
            frontend::BIND => {
                let (name, _) = string(string(body)?.1)?;
                match self.statement(name) {
                    Some(named) => Some(named.statement.text()),
                    None if name.is_empty() => {
                        let unnamed = match &self.backend {
                            Some(backend) => backend.unnamed_of(self),
                            None => self.prepared.unnamed.as_ref(),
                        };
                        Some(unnamed?.text())
                    }
                    None => None,
                }
            }
            _ => None,
        }
    }

    /// The PREPARE of the statement that an EXECUTE names.
    fn prepared_as(&self, text: &[u8]) -> Option<&[u8]> {
        if self.sql_statements().is_empty() || !begins_with_any(text, &[b"execute"]) {
            return None;
        }
        let name = Tokens::lenient(text).into_iter().nth(1)?;
        let (Content::Word(name) | Content::Quoted(name)) = name.kind else { return None };
        let named = self.sql_statements().iter().find(|statement| statement.name == name)?;
        Some(named.text())
    }

    /// Whether it has nothing outstanding, and no pipeline that has begun.
    fn is_between_queries(&self) -> bool {
        self.backend
            .as_ref()
            .is_none_or(|backend| backend.requests.is_empty() && !backend.requests.is_in_pipeline())
    }

    /// Whether its next message has been judged.
    #[inline]
    pub(crate) fn is_judged(&self) -> bool {
        let ruling = self.pending_session.as_ref().and_then(|extra| extra.ruling.as_ref());
        ruling.is_some_and(|ruling| ruling.judged)
    }

    /// Its place among those that wait for a server connection.
    #[inline]
    pub(crate) fn priority(&self) -> Priority {
        let ruling = self.pending_session.as_ref().and_then(|extra| extra.ruling.as_ref());
        ruling.map_or(Priority::Usual, |ruling| ruling.priority)
    }

    /// What rules had matched has ended: places are given back. A message that still waits is judged
    /// again.
    #[inline]
    pub(crate) fn end_ruling(&mut self) {
        if let Some(extra) = &mut self.pending_session
            && extra.ruling.take().is_some()
        {
            self.settle();
        }
    }

    /// A message of this kind has been answered without a server.
    pub(crate) fn judged_stays(&mut self, kind: u8) {
        match self.ruling() {
            Some(ruling) if !matches!(kind, frontend::QUERY | frontend::SYNC) => {
                ruling.judged = false;
            }
            _ => self.end_ruling(),
        }
    }

    /// A message that was judged, if it was, has been `sent`, or waits.
    #[inline]
    pub(crate) fn judged_goes(&mut self, sent: bool, now: Time) {
        match self.ruling() {
            Some(ruling) if !sent || !ruling.judged => {}
            Some(ruling) if !ruling.matched.is_empty() => {
                ruling.judged = false;
                ruling.refusal = None; // the server was to ignore the message
                ruling.begins(now);
            }
            _ => self.end_ruling(),
        }
    }

    fn ruling(&mut self) -> Option<&mut Ruling> {
        self.pending_session.as_mut()?.ruling.as_mut()
    }

    /// When a rule cuts off what it runs.
    pub(crate) fn ends_by_rule(&self) -> Option<Time> {
        self.pending_session.as_ref()?.ruling.as_ref()?.ends
    }

    /// The error in place of one for a cancelled query, if a rule has cancelled it.
    pub(crate) fn error_of_rule(&mut self, error: &[u8]) -> Option<ClientError> {
        let ruling = self.ruling()?;
        if field(error, b'C') != Some(&SqlState::QUERY_CANCELED.0[..]) {
            return None;
        }
        Some(ruling.cut_off.take()?.is_over())
    }

    /// Answers a message in the place of a server, which the client does not have.
    fn refuse_here(
        &mut self,
        header: Header,
        refusal: &ClientError,
        passage: &mut Passage<'_>,
        now: Time,
    ) {
        self.end_ruling();
        self.take_cancel();
        let come = header.total().min(passage.rest().len());
        let to_come = header.total() - come;
        passage.skip(come);
        let mut answer = Vec::new();
        refusal.write(&mut answer);
        if header.kind == frontend::QUERY {
            answer.extend(self.take_unreported());
            build::ready_for_query(&mut answer, TransactionStatus::Idle);
        } else {
            self.pending_session().dropped.until_sync();
        }
        if to_come > 0 {
            self.pending_session().dropped.rest_of_message(to_come);
        }
        self.settle();
        self.times.begin(now);
        self.reply(&answer);
    }
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Has the server refuse the current message, if a rule does. Returns whether that was so.
    pub(crate) fn refuse_by_rule(&mut self) -> Result<bool, Halt> {
        let Some(refusal) = self.client.ruling().and_then(|ruling| ruling.refusal.take()) else {
            return Ok(false);
        };
        let is_query = self.header.kind == frontend::QUERY;
        if is_query && self.backend.requests.is_in_pipeline() {
            // A Sync of Hawser's would end what the client has not ended.
            return Err(Halt::Refused(ClientError { severity: Severity::Fatal, ..refusal }));
        }
        let mut error = Vec::new();
        refusal.write(&mut error);
        self.backend.prepared.replay.forget(); // it has the message, which is not to be sent
        self.drop_message()?;
        // A statement that does not exist is refused in any state of the transaction, and nothing
        // remains.
        let out = &mut self.passage.out;
        build::close_statement(out, EMPTY);
        build::message(out, frontend::BIND, |out| {
            build::string(out, b"");
            build::string(out, EMPTY);
            out.extend_from_slice(&[0; 6]);
        });
        self.backend.request(Request::Injected);
        self.backend.request_with(Request::Refused, Some(Refusal::of_all(error)));
        if is_query {
            self.passage.out.extend_from_slice(&build::SYNC);
            self.backend.request(Request::Sync);
        }
        Ok(true)
    }
}
