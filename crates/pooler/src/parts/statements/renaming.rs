//! Messages that change what a client's names for prepared statements mean: records the change and
//! its entry in the queue of requests in one step.

use crate::hash::Keyed;
use crate::parts::statements::client_names::{ClientStatement, significant};
use crate::parts::statements::journal::Journal;
use crate::parts::statements::own_named::NotedStatement;
use crate::parts::statements::unnamed::ServerUnnamed;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::request_queue::{Change, Entry, Request};
use crate::relay::socket::Socket;
use crate::session::part::Part;

impl<S: Socket> Client<S> {
    /// What a name stands for, for a message that is sent now.
    pub(crate) fn statement(&self, name: &[u8]) -> Option<&ClientStatement> {
        self.prepared.statements.as_deref()?.get(significant(name))
    }

    /// The pipeline of the newest change in flight of a name.
    pub(crate) fn name_changes_in(&self, name: &[u8]) -> Option<u64> {
        self.prepared.statements.as_deref()?.names().changes_in(significant(name))
    }

    /// Whether it may give another name, to a statement whose text has so many bytes.
    pub(crate) fn has_room_for_name(&self, text_bytes: usize) -> bool {
        self.prepared.statements.as_deref().is_none_or(|names| names.has_room(text_bytes))
    }

    /// Whether no change of a name is in flight.
    pub(crate) fn names_are_settled(&self) -> bool {
        let noted = self.pending_session.as_ref().and_then(|extra| extra.noted.as_ref());
        self.prepared.statements.as_deref().is_none_or(|names| names.names().is_settled())
            && noted.is_none_or(|noted| noted.is_settled())
    }

    /// The server has answered the message of this change, the oldest of its kind in flight; or
    /// everything before an answer of Hawser's to it.
    #[inline]
    pub(crate) fn confirm(&mut self, change: Option<&Change>, unnamed: &mut ServerUnnamed) {
        match change {
            Some(Change::Unnamed) => unnamed.confirm(&mut self.prepared.unnamed),
            Some(Change::Names) => self.change_names(Journal::confirm),
            Some(Change::Notes) => self.change_notes(Journal::confirm),
            _ => {}
        }
    }

    /// The server has refused or ignored it.
    pub(crate) fn ignore(&mut self, change: &Change, unnamed: &mut ServerUnnamed) {
        match change {
            Change::Unnamed => self.ignore_unnamed(unnamed),
            Change::Names => self.change_names(Journal::ignore),
            Change::Notes => self.change_notes(Journal::ignore),
            _ => {}
        }
    }

    fn ignore_unnamed(&mut self, unnamed: &mut ServerUnnamed) {
        if unnamed.ignore() {
            self.session.pins.remove(Part::UnnamedStatement);
        }
    }

    fn change_names(&mut self, change: impl FnOnce(&mut Journal<ClientStatement>)) {
        if let Some(names) = self.prepared.statements.as_deref_mut() {
            names.change(change);
        }
    }

    fn change_notes(&mut self, change: impl FnOnce(&mut Journal<NotedStatement>)) {
        if let Some(noted) = self.pending_session.as_mut().and_then(|extra| extra.noted.as_mut()) {
            change(noted);
        }
    }

    /// A DISCARD ALL or DEALLOCATE ALL of the client's has succeeded, even if something after it in
    /// the same text fails.
    pub(crate) fn took_all_names(&mut self) {
        self.change_names(Journal::took_all);
    }
}

impl<S: Socket> Backend<S> {
    /// A Parse that gives a name is sent, or answered here.
    pub(crate) fn request_naming(
        &mut self,
        owed: Request,
        client: &mut Client<S>,
        (name, statement): (&[u8], ClientStatement),
        hash_key: Keyed,
    ) {
        let memory = self.pool.statements.memory();
        let names = client.prepared.names(hash_key, memory);
        let pipeline = self.requests.pipeline();
        names.change(|names| names.give(significant(name).into(), statement, pipeline));
        self.request_with(owed, Some(Change::Names));
    }

    /// The preceding request removes a name, if that stands for a statement, or a Close does that
    /// is answered here (`answered`).
    pub(crate) fn request_taking(&mut self, client: &mut Client<S>, name: &[u8], answered: bool) {
        let name = significant(name);
        let Some(names) =
            client.prepared.statements.as_deref_mut().filter(|names| names.get(name).is_some())
        else {
            return;
        };
        names.change(|names| names.take(name, self.requests.pipeline()));
        self.request_with(Request::CloseKnown { answered }, Some(Change::Names));
    }

    /// The preceding Execute is of a DISCARD ALL or DEALLOCATE ALL.
    pub(crate) fn request_taking_all(&mut self, client: &mut Client<S>) {
        let Some(names) = client.prepared.statements.as_deref_mut() else { return };
        names.change(|names| names.take_all(self.requests.pipeline()));
        self.request_with(Request::CloseKnown { answered: false }, Some(Change::Names));
    }

    /// The Query that has just been sent contains a DISCARD ALL or DEALLOCATE ALL.
    pub(crate) fn last_query_takes_all(&mut self, client: &mut Client<S>) {
        let Some(names) = client.prepared.statements.as_deref_mut() else { return };
        if self.requests.mark_last_query(Change::Names) {
            names.change(|names| names.take_all(self.requests.pipeline() - 1));
        }
    }

    /// The preceding query of Hawser's removes a name if it succeeds: it is not translated any
    /// more.
    pub(crate) fn own_query_takes(&mut self, client: &mut Client<S>, name: &[u8]) {
        let Some(names) = client.prepared.statements.as_deref_mut() else { return };
        names.change(|names| names.take(significant(name), self.requests.pipeline()));
        let owed = Request::CloseKnown { answered: false };
        self.requests.push_unsent(Entry { owed, change: Some(Change::Names), query: None });
    }

    /// A Parse or Close is sent under its client's own name, for which this is noted from now on.
    pub(crate) fn request_noting(
        &mut self,
        owed: Request,
        client: &mut Client<S>,
        (name, now): (&[u8], NotedStatement),
        hash_key: Keyed,
    ) {
        let name = significant(name);
        if now.is_nothing() && client.noted(name).is_none() {
            return self.request(owed);
        }
        let noted = &mut client.pending_session().noted;
        let noted = noted.get_or_insert_with(|| Box::new(Journal::new(hash_key)));
        let pipeline = self.requests.pipeline();
        match now.is_nothing() {
            true => noted.take(name, pipeline),
            false => noted.give(name.into(), now, pipeline),
        }
        self.request_with(owed, Some(Change::Notes));
    }
}
