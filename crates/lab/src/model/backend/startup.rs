//! From the first byte to the first ReadyForQuery.
//!
//! # Limits      all users are trusted; TLS and GSSAPI are refused with N

use super::{Ending, ModelBackend};
use hawser_pooler::parts::report::text;

use crate::model::commit::ProcessId;
use crate::model::error::PgError;
use crate::model::session::Session;
use crate::model::settings::{self, Defaults};
use crate::model::wire::{Body, Reader};

const CANCEL_REQUEST: i32 = 80_877_102;
const SSL_REQUEST: i32 = 80_877_103;
const GSS_REQUEST: i32 = 80_877_104;

impl ModelBackend {
    pub(super) fn startup(&mut self) -> Result<bool, PgError> {
        let Some(packet) = self.cut(false)? else { return Ok(false) };
        let mut reader = Reader::new(&packet.body);
        match reader.int32()? {
            SSL_REQUEST | GSS_REQUEST => {
                self.unflushed.push(b'N');
                self.flush();
                Ok(true)
            }
            CANCEL_REQUEST => {
                let process = ProcessId(reader.int32()?);
                self.server.cancel(process, reader.rest());
                self.end(Ending::Closed);
                Ok(true)
            }
            version if version >> 16 == 3 => self.log_in(version & 0xffff, &mut reader),
            version => {
                let message = format!(
                    "unsupported frontend protocol {}.{}: server supports 3.0 to 3.{}",
                    version >> 16,
                    version & 0xffff,
                    self.server.lock().config.protocol_minor
                );
                Err(PgError::fatal("0A000", message))
            }
        }
    }

    fn log_in(&mut self, minor: i32, reader: &mut Reader<'_>) -> Result<bool, PgError> {
        let (mut user, mut database) = (String::new(), String::new());
        let (mut asked, mut unknown) = (Vec::new(), Vec::new());
        let mut reports = false;
        loop {
            let name = reader.text()?;
            if name.is_empty() {
                break;
            }
            let value = reader.text()?;
            match name.as_str() {
                "user" => user = value,
                "database" => database = value,
                "options" => asked.extend(options(&value)),
                "replication" => {}
                _ if name.as_bytes() == text::ASKING && self.server.lock().config.reports => {
                    reports = value == "on";
                }
                _ if name.starts_with("_pq_.") => unknown.push(name),
                _ => asked.push((name, value)),
            }
        }
        let supported = self.server.lock().config.protocol_minor;
        let agreed = supported.min(u16::try_from(minor).unwrap_or(u16::MAX));
        if i32::from(agreed) < minor || !unknown.is_empty() {
            let count = i32::try_from(unknown.len()).expect("a startup packet is small");
            let body = Body::new().int32((3 << 16) | i32::from(agreed)).int32(count);
            let body = unknown.iter().fold(body, |body, name| body.text(name));
            self.send(&body.message(b'v'));
        }
        if user.is_empty() {
            let message = "no PostgreSQL user name specified in startup packet";
            return Err(PgError::fatal("28000", message));
        }
        if database.is_empty() {
            database.clone_from(&user);
        }
        let server = self.server.clone();
        let mut cluster = server.lock();
        if !cluster.roles.contains_key(&user) {
            return Err(PgError::fatal("28000", format!("role \"{user}\" does not exist")));
        }
        self.send(&Body::new().int32(0).message(b'R'));
        let Some(contents) = cluster.databases.get(&database).cloned() else {
            let message = format!("database \"{database}\" does not exist");
            return Err(PgError::fatal("3D000", message));
        };
        let mut defaults = Defaults::default();
        defaults.begin_as(&user);
        for (name, value) in asked {
            let key = settings::key(&name);
            if key == "search_path" {
                // An option's value is kept as it was written.
                defaults.start_with(&key, value);
                continue;
            }
            let value = settings::canonical(&key, &[value])
                .map_err(|error| PgError::fatal(error.code, error.message))?;
            defaults.start_with(&key, value);
        }
        let Some(process) = cluster.admit(&database, agreed) else {
            return Err(PgError::fatal("53300", "sorry, too many clients already"));
        };
        let secret = cluster.processes[&process].secret.clone();
        drop(cluster);
        self.session = Some(Session::new(process, (database, &contents), user, defaults));
        self.report_settings();
        if reports {
            self.send_state("1".to_owned());
        }
        self.send(&Body::new().int32(process.0).bytes(&secret).message(b'K'));
        self.ready();
        Ok(true)
    }
}

/// `-c name=value` and `--name=value`; a backslash keeps a blank.
fn options(text: &str) -> Vec<(String, String)> {
    let mut words = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => words.last_mut().expect("never empty").extend(chars.next()),
            c if c.is_whitespace() => words.push(String::new()),
            c => words.last_mut().expect("never empty").push(c),
        }
    }
    let assignment = |word: &str| {
        let (name, value) = word.split_once('=')?;
        Some((name.replace('-', "_"), value.to_owned()))
    };
    words
        .iter()
        .filter_map(|word| {
            let word = word.strip_prefix("-c").or_else(|| word.strip_prefix("--"));
            assignment(word.unwrap_or(""))
        })
        .chain(
            words.windows(2).filter(|pair| pair[0] == "-c").filter_map(|pair| assignment(&pair[1])),
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::options;

    #[test]
    fn options_are_cut_at_blanks_that_no_backslash_keeps() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(options(r"-c a.b=x\ y"), vec![pair("a.b", "x y")]);
        assert_eq!(options("-cwork_mem=1MB"), vec![pair("work_mem", "1MB")]);
        assert_eq!(options("--statement-timeout=5s"), vec![pair("statement_timeout", "5s")]);
    }
}
