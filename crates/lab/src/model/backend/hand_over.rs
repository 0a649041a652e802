//! `hawser.hand_over()` of a server with the extension: the session is another user's.

use hawser_pooler::parts::identity::hand_over::HandOverKey;

use super::ModelBackend;
use crate::model::catalog;
use crate::model::error::PgError;
use crate::model::wire::Body;

const MAC_BYTES: usize = 8;
const ALONE_WITH_USER: u8 = 1 | 4;

/// What the pooler is to know of each session.
#[must_use]
pub fn key() -> HandOverKey {
    HandOverKey {
        key: *b"a simulated key!",
        function: catalog::HAND_OVER,
        pooler: 1,
        sent: 0,
        takes_transport: false,
    }
}

fn refused() -> PgError {
    PgError::fatal("42501", "hawser.hand_over() is not for clients")
}

/// The user in a message, and the message's number.
fn read(message: &[u8]) -> Option<(u64, String)> {
    let (signed, mac) = message.split_at_checked(message.len().checked_sub(MAC_BYTES)?)?;
    if key().sign(signed) != *mac {
        return None;
    }
    let (head, rest) = signed.split_at_checked(2)?;
    let (number, rest) = rest.split_at_checked(8)?;
    // The pooler, the client, its address: a unix socket's.
    let (_, user) = rest.split_at_checked(8 + 4 + 3)?;
    let (length, user) = user.split_at_checked(2)?;
    let length = u16::from_be_bytes(length.try_into().ok()?);
    if head != [1, ALONE_WITH_USER] || usize::from(length) != user.len() {
        return None;
    }
    Some((u64::from_be_bytes(number.try_into().ok()?), String::from_utf8(user.to_vec()).ok()?))
}

impl ModelBackend {
    pub(super) fn hand_over(&mut self, arguments: &[Option<Vec<u8>>]) -> Result<(), PgError> {
        let [Some(message)] = arguments else { return Err(refused()) };
        let (number, user) = read(message).ok_or_else(refused)?;
        self.handed_over += 1;
        if number != self.handed_over {
            return Err(PgError::fatal("08P01", "the hand-over is out of order"));
        }
        if !self.server.lock().roles.contains_key(&user) {
            return Err(PgError::error("28000", format!("role \"{user}\" does not exist")));
        }
        self.session().hand_over(user);
        self.send(&Body::new().value(Some(&[][..])).message(b'V'));
        self.finish();
        self.ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_another_key_is_refused() {
        let mut message = vec![1, 5];
        message.extend_from_slice(&1u64.to_be_bytes());
        message.extend_from_slice(&[0; 12]);
        message.extend_from_slice(&[1, 0, 0, 0, 3]);
        message.extend_from_slice(b"app");
        let mac = key().sign(&message);
        message.extend_from_slice(&mac);
        assert_eq!(read(&message), Some((1, "app".to_owned())));
        message[5] ^= 1;
        assert_eq!(read(&message), None);
        assert_eq!(read(b"short"), None);
    }
}
