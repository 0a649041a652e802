//! Bind messages that are changed on their way: a NULL that is the value of a set_config() is a
//! RESET, and the client's start value is sent in its place (see [`crate::parts::settings::restore`]).
//!
//! # Limits
//! No NULL is replaced in a Bind that streams, nor where its parameter is used elsewhere in the
//! text, too, or in an expression; nor in an EXECUTE, nor where the start value is not ASCII and
//! the `client_encoding` not the server's.

use crate::parts::statements::own_named::NotedStatement;
use crate::parts::statements::shared::Statement;
use crate::relay::effects::{Effect, Effects};
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::session::calls;
use crate::session::calls::{Given, Setting};
use crate::session::settings::Settings;
use crate::wire::{build, frame, frontend};

/// Parameters of a Bind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parameters<'a> {
    /// The bytes before them, after the names.
    formats: &'a [u8],
    pub(crate) values: Vec<Option<&'a [u8]>>,
    /// The bytes after them.
    results: &'a [u8],
}

impl<'a> Parameters<'a> {
    /// From a Bind's body, after the names; `None` if that is malformed.
    pub(crate) fn read(body: &'a [u8]) -> Option<Self> {
        let (count, rest) = frame::take_u16(body)?;
        let formats = body.get(..2 + 2 * usize::from(count))?;
        let (count, mut rest) = frame::take_u16(rest.get(2 * usize::from(count)..)?)?;
        let mut values = Vec::new();
        for _ in 0..count {
            const NULL: u32 = u32::MAX;
            let (length, after) = frame::take_u32(rest)?;
            if length == NULL {
                values.push(None);
                rest = after;
                continue;
            }
            let (value, after) = after.split_at_checked(usize::try_from(length).ok()?)?;
            values.push(Some(value));
            rest = after;
        }
        Some(Self { formats, values, results: rest })
    }

    /// Whether the value at `at` is in binary format.
    pub(crate) fn is_binary(&self, at: usize) -> bool {
        let formats = self.formats.get(2..).unwrap_or_default();
        let format = match formats.len() {
            2 => formats.get(..2), // for all
            _ => formats.get(2 * at..2 * at + 2),
        };
        format == Some(&[0, 1])
    }

    /// Appends them as in a Bind.
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.formats);
        // (As many as were read from a message.)
        out.extend_from_slice(&u16::try_from(self.values.len()).unwrap_or(u16::MAX).to_be_bytes());
        for value in &self.values {
            let length = value.map_or(Some(u32::MAX), |value| u32::try_from(value.len()).ok());
            out.extend_from_slice(&length.unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(value.unwrap_or_default());
        }
        out.extend_from_slice(self.results);
    }

    /// Writes start values in place of the NULLs that set_config() is given. Returns whether there
    /// were any.
    ///
    /// `raw`: the server would read a value beyond ASCII as it is.
    fn write_start(&mut self, start: &'a Settings, given: &[Given], raw: bool) -> bool {
        let mut any = false;
        for Given { setting, value: at } in given {
            let name = match setting {
                Setting::Named(name) => Some(&**name),
                Setting::Parameter(at) => self.values.get(*at).copied().flatten(),
            };
            if let Some(value) = self.values.get_mut(*at)
                && value.is_none()
                && let Some(start) = name.and_then(|name| start.get(&name.to_ascii_lowercase()))
                && (raw || start.is_ascii())
            {
                *value = Some(start);
                any = true;
            }
        }
        any
    }
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Sends a Parse or Close for whose name this is noted.
    pub(crate) fn request_noting(&mut self, owed: Request, noted: Option<(&[u8], NotedStatement)>) {
        match noted {
            Some(noted) => self.backend.request_noting(owed, self.client, noted, self.hash_key),
            None => self.backend.request(owed),
        }
    }

    /// What is noted for a statement that is prepared under its client's own name. `text`: `None`
    /// if it is not known.
    pub(crate) fn to_be_noted(
        &self,
        text: Option<(&[u8], &Effects)>,
    ) -> Result<NotedStatement, Halt> {
        let now = match text.filter(|_| self.client.has_start_values()) {
            Some((text, effects)) => {
                let given = match effects.may(Effect::ResetsByParameter) && !self.is_in_doubt(text)
                {
                    true => calls::of_set_config(text, self.scan_options()),
                    false => Vec::new(),
                };
                NotedStatement::new(effects.unusual.as_deref(), given)
            }
            None => NotedStatement::default(),
        };
        Ok(self.client.if_room_to_note(now)?)
    }

    /// The part after the names of the current Bind, of a statement with this text and these
    /// effects, with the client's start values in place of NULLs. `None` if it stays as it is.
    fn with_start_values(&self, text: &[u8], effects: &Effects) -> Option<Vec<u8>> {
        if !effects.may(Effect::ResetsByParameter) || !self.client.has_start_values() {
            return None;
        }
        // (The Parse has decided how a backslash is read.)
        if memchr::memchr(b'\\', text).is_some() {
            return None;
        }
        self.with_start_values_for(|| calls::of_set_config(text, self.scan_options()))
    }

    fn with_start_values_for(&self, given: impl FnOnce() -> Vec<Given>) -> Option<Vec<u8>> {
        if !self.is_whole() {
            return None;
        }
        let (_, rest) = frame::take_string(self.body)?;
        let (_, rest) = frame::take_string(rest)?;
        let mut parameters = Parameters::read(rest)?;
        if parameters.values.iter().all(Option::is_some) {
            return None;
        }
        let raw = self.backend.reads_raw();
        if !parameters.write_start(&self.client.record.start, &given(), raw) {
            return None;
        }
        let mut body = Vec::with_capacity(rest.len() + 64);
        parameters.write(&mut body);
        Some(body)
    }

    /// Passes on the Bind of a statement that the server knows by its client's own name. `text`:
    /// the text of that statement, where it is known.
    pub(crate) fn pass_bind_native(
        &mut self,
        portal: &[u8],
        name: &[u8],
        text: Option<(&[u8], &Effects)>,
    ) -> Result<(), Halt> {
        let own = match text {
            Some((text, effects)) => self.with_start_values(text, effects),
            None => self
                .client
                .noted(name)
                .and_then(|noted| self.with_start_values_for(|| noted.given.to_vec())),
        };
        match own {
            Some(own) => self.pass_bind_with(portal, name, &own)?,
            None => self.pass(),
        }
        self.backend.request(Request::Bind { statement: 0 });
        Ok(())
    }

    /// Passes the Bind on with the name of a shared statement.
    pub(crate) fn pass_bind(
        &mut self,
        portal: &[u8],
        name: &[u8],
        statement: &Statement,
    ) -> Result<(), Halt> {
        if let Some(own) = self.with_start_values(statement.text(), &statement.effects) {
            self.pass_bind_with(portal, &statement.name, &own)?;
        } else {
            self.pass_with(portal.len() + 1 + name.len() + 1, |out| {
                build::string(out, portal);
                build::string(out, &statement.name);
            })?;
        }
        self.backend.request(Request::Bind { statement: statement.id });
        Ok(())
    }

    /// The number of a statement's parameters. `body`: its Parse after the name. `None` if that is
    /// not certain.
    pub(crate) fn parameters_of(&self, body: &[u8]) -> Option<usize> {
        let (text, types) = frame::take_string(body)?;
        let (declared, _) = frame::take_u16(types)?;
        // (The Parse has decided how a backslash is read.)
        if memchr::memchr(b'\\', text).is_some() || self.is_in_doubt(text) {
            return None;
        }
        let numbered = calls::parameters(text, self.scan_options())?;
        Some(numbered.max(usize::from(declared)))
    }

    /// The numbers of formats and of parameters of the current Bind.
    pub(crate) fn parameter_counts(&self) -> Option<(u16, usize)> {
        let (_, rest) = frame::take_string(self.body)?;
        let (_, rest) = frame::take_string(rest)?;
        let parameters = Parameters::read(rest).filter(|_| self.is_whole())?;
        Some((frame::take_u16(parameters.formats)?.0, parameters.values.len()))
    }

    /// Passes on the whole Bind, with other parameters.
    fn pass_bind_with(&mut self, portal: &[u8], name: &[u8], rest: &[u8]) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        build::message(&mut self.passage.out, frontend::BIND, |out| {
            build::string(out, portal);
            build::string(out, name);
            out.extend_from_slice(rest);
        });
        self.passage.skip(self.header.total());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::settings::SettingsBuilder;

    /// As a client sends them: formats, values, formats of results.
    fn sent(formats: &[u16], values: &[Option<&[u8]>], results: &[u16]) -> Vec<u8> {
        let count = |count: usize| u16::try_from(count).unwrap().to_be_bytes();
        let mut out = count(formats.len()).to_vec();
        formats.iter().for_each(|format| out.extend_from_slice(&format.to_be_bytes()));
        out.extend_from_slice(&count(values.len()));
        for value in values {
            let length = value.map_or(-1, |value| i32::try_from(value.len()).unwrap());
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(value.unwrap_or_default());
        }
        out.extend_from_slice(&count(results.len()));
        results.iter().for_each(|format| out.extend_from_slice(&format.to_be_bytes()));
        out
    }

    #[test]
    fn nulls_become_start_values_and_all_else_stays() {
        let zone: (&[u8], &[u8]) = (b"timezone", b"Asia/Tokyo");
        let start = [zone].into_iter().collect::<SettingsBuilder>().build();
        let named = |name: &[u8], value| Given { setting: Setting::Named(name.into()), value };
        let by = |name, value| Given { setting: Setting::Parameter(name), value };
        let written = |values: &[Option<&[u8]>], given: &[Given]| {
            let body = sent(&[0, 1], values, &[1]);
            let mut parameters = Parameters::read(&body).unwrap();
            let any = parameters.write_start(&start, given, false);
            let mut out = Vec::new();
            parameters.write(&mut out);
            assert_eq!(any, out != body);
            out
        };
        let own: Option<&[u8]> = Some(b"Asia/Tokyo");
        let [x, zone] = [&b"x"[..], b"TimeZone"].map(Some);
        let all = |values: &[Option<&[u8]>]| sent(&[0, 1], values, &[1]);
        assert_eq!(written(&[None, x], &[named(b"timezone", 0)]), all(&[own, x]));
        assert_eq!(written(&[x, None], &[named(b"timezone", 0)]), all(&[x, None]));
        assert_eq!(written(&[None], &[named(b"my.x", 0)]), all(&[None]));
        assert_eq!(written(&[zone, None, None], &[by(0, 1)]), all(&[zone, own, None]));
        assert_eq!(written(&[None, None], &[by(0, 1)]), all(&[None, None]));
        assert_eq!(written(&[None], &[named(b"timezone", 7), by(9, 0)]), all(&[None]));
    }

    #[test]
    fn what_is_cut_short_is_left_to_the_server() {
        let body = sent(&[0], &[None, Some(b"value")], &[]);
        let shortest = body.len() - 2;
        for length in 0..shortest {
            assert_eq!(Parameters::read(&body[..length]), None, "{length}");
        }
        assert_eq!(Parameters::read(&body).unwrap().values, [None, Some(&b"value"[..])]);
    }
}
