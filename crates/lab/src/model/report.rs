//! The text of `hawser.state`, as a server with the extension sends it (extension/state.c).

use super::cluster::Cluster;
use super::session::Session;

/// Letters, digits and `_.-/` as they are, other bytes as `%XX`.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

impl Session {
    /// What the session holds; it is in no transaction.
    pub(super) fn state(&self, cluster: &Cluster) -> String {
        let mut text = "1".to_owned();
        let list = |text: &mut String, word: &str, values: Vec<String>| {
            if !values.is_empty() {
                text.push_str(&format!(" {word}={}", values.join(",")));
            }
        };
        if !self.now.temp.is_empty() {
            text.push_str(" temp");
        }
        let locks = cluster.locks.values().filter(|(holder, _)| *holder == self.process).count();
        if locks > 0 {
            text.push_str(&format!(" locks={locks}"));
        }
        if !self.sequences.is_empty() {
            text.push_str(" sequences");
        }
        let cursors = self.portals.iter().filter(|(_, portal)| portal.hold);
        list(&mut text, "cursors", cursors.map(|(name, _)| escaped(name)).collect());
        let process = cluster.processes.get(&self.process);
        let channels = process.into_iter().flat_map(|process| &process.listens);
        list(&mut text, "listen", channels.map(|channel| escaped(channel)).collect());
        let statements = self.statements.iter().filter(|(_, prepared)| prepared.from_sql);
        list(&mut text, "statements", statements.map(|(name, _)| escaped(name)).collect());
        let set = self.now.settings.set_in_session();
        let set = set.map(|(name, value)| format!("{}:{}", escaped(name), escaped(value)));
        list(&mut text, "set", set.collect());
        let names = self.defaults.names_made().map(escaped);
        list(&mut text, "names", names.collect());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn what_is_no_letter_is_escaped() {
        assert_eq!(escaped("a_B.9-/"), "a_B.9-/");
        assert_eq!(escaped("\"$user\", \u{e9}"), "%22%24user%22%2C%20%C3%A9");
    }
}
