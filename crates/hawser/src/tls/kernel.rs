//! Sessions of TLS whose records the kernel makes and reads (kTLS): another process can go on with one, from its
//! descriptor alone.
//!
//! # Model
//! ```text
//!   rustls: handshake, login, queries ── its client is to leave this process ──► keys to the kernel, for good
//! ```
//! Only a client that goes to its server or to a successor has its session handed to the kernel: all others stay
//! with rustls, which answers each alert and changes keys.
//!
//! # Invariants
//! * the kernel gets a session between two records: all that was read rustls has decrypted and given out, and all
//!   that rustls has encrypted has been sent
//! * nothing is changed on a socket before it is known that the kernel takes the version and the cipher
//!
//! # Limits
//! A client that changes its keys (KeyUpdate of TLS 1.3) is disconnected: rustls does not give out what the next keys
//! are made of, and a kernel before 6.14 does not take them.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::LazyLock;

use hawser_sys::ktls::{self, Cipher, Keys, NONCE_BYTES, RecordType, Way};
use rustls::{CommonState, Connection, ConnectionTrafficSecrets};

/// Bytes before the payload of a record: type, version, length (RFC 8446, section 5.1).
const HEADER_BYTES: usize = 5;
/// RFC 8446, section 5.1.
const ALERT: RecordType = 21;
/// A warning, close_notify (RFC 8446, section 6).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
/// What is read of a record without data: alerts have two bytes, a KeyUpdate five.
const OTHER_BYTES_MAX: usize = 256;

/// What a session is encrypted by.
type Suite = (u16, Cipher);

const SUITES: [Suite; 6] = [
    (0x0304, Cipher::Aes128Gcm),
    (0x0304, Cipher::Aes256Gcm),
    (0x0304, Cipher::ChaCha20Poly1305),
    (0x0303, Cipher::Aes128Gcm),
    (0x0303, Cipher::Aes256Gcm),
    (0x0303, Cipher::ChaCha20Poly1305),
];

/// What this kernel takes; why nothing.
static TAKEN: LazyLock<Result<Vec<Suite>, String>> = LazyLock::new(|| match try_all() {
    Ok(taken) if taken.is_empty() => Err("the kernel has kTLS, but no cipher for it".to_owned()),
    Ok(taken) => Ok(taken),
    Err(error) if error.kind() == io::ErrorKind::NotFound => {
        Err("the kernel has no kTLS, or its module is not loaded (modprobe tls)".to_owned())
    }
    Err(error) => Err(format!("kTLS could not be tried: {error}")),
});

fn try_all() -> io::Result<Vec<Suite>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut taken = Vec::new();
    for suite in SUITES {
        let (near, _far) = (TcpStream::connect(listener.local_addr()?)?, listener.accept()?);
        ktls::attach(&near)?;
        let (version, cipher) = suite;
        let length = if cipher == Cipher::Aes128Gcm { 16 } else { 32 };
        let (key, nonce) = (&[0; 32][..length], &[0; NONCE_BYTES]);
        let keys = Keys { version, cipher, key, nonce, sequence: 0 };
        if [Way::Out, Way::In].into_iter().all(|way| ktls::set_keys(&near, way, &keys).is_ok()) {
            taken.push(suite);
        }
    }
    Ok(taken)
}

/// Why this kernel takes no session. Asks it, once: to be called first where that may take a moment.
pub fn why_not() -> Option<&'static str> {
    TAKEN.as_ref().err().map(String::as_str)
}

/// Whether the kernel takes this session.
pub fn takes(session: &CommonState) -> bool {
    let version = session.protocol_version().map(u16::from);
    let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
    let name = suite.and_then(|suite| suite.as_str()).unwrap_or_default();
    let cipher = match name {
        name if name.contains("AES_128_GCM") => Cipher::Aes128Gcm,
        name if name.contains("AES_256_GCM") => Cipher::Aes256Gcm,
        name if name.contains("CHACHA20_POLY1305") => Cipher::ChaCha20Poly1305,
        _ => return false,
    };
    let wanted = version.map(|version| (version, cipher));
    wanted.is_some_and(|wanted| TAKEN.as_ref().is_ok_and(|taken| taken.contains(&wanted)))
}

/// Hands a session over to the kernel, between two records. Before, [`takes`] has said that it takes it, and
/// [`ktls::attach`] that it can on this socket.
///
/// # Errors
/// The connection is of no more use.
pub fn hand_over(socket: impl AsFd, session: Connection) -> io::Result<()> {
    let version = session.protocol_version().map_or(0, u16::from);
    let secrets = session.dangerous_extract_secrets().map_err(io::Error::other)?;
    for (way, (sequence, secrets)) in [(Way::Out, &secrets.tx), (Way::In, &secrets.rx)] {
        let (cipher, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (Cipher::ChaCha20Poly1305, key, iv)
            }
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let nonce = iv.as_ref().try_into().map_err(io::Error::other)?;
        let keys = Keys { version, cipher, key: key.as_ref(), nonce, sequence: *sequence };
        ktls::set_keys(&socket, way, &keys)?;
    }
    Ok(())
}

/// What a read gives where the next record has no data: 0, the end, at an alert.
///
/// # Errors
/// Any other record; as [`ktls::receive_record`].
pub fn read_other(socket: impl AsFd) -> io::Result<usize> {
    match ktls::receive_record(socket, &mut [0; OTHER_BYTES_MAX])? {
        (ALERT, _) => Ok(0),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the client has changed the keys of its TLS session, which the kernel cannot follow",
        )),
    }
}

/// Tells the peer that nothing more comes, as far as that is possible without waiting.
pub fn part(socket: impl AsFd) {
    let _ = ktls::send_record(socket, ALERT, &CLOSE_NOTIFY);
}

/// Whether all records that rustls has been given are whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Records {
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that have come.
    begun: usize,
    /// Bytes of the payload that have not.
    left: usize,
}

impl Records {
    /// It is given these bytes next.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left == 0 {
                let count = bytes.len().min(HEADER_BYTES - self.begun);
                self.header[self.begun..][..count].copy_from_slice(&bytes[..count]);
                self.begun += count;
                bytes = &bytes[count..];
                if self.begun < HEADER_BYTES {
                    return;
                }
                self.begun = 0;
                self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            }
            let count = bytes.len().min(self.left);
            self.left -= count;
            bytes = &bytes[count..];
        }
    }

    /// The next byte is the first one of a record.
    pub fn are_whole(&self) -> bool {
        self.left == 0 && self.begun == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_in_any_pieces_whether_records_are_whole() {
        let record = |payload: usize| {
            let mut bytes = vec![23, 3, 3, (payload >> 8) as u8, payload as u8];
            bytes.resize(HEADER_BYTES + payload, 7);
            bytes
        };
        let payloads = [1, 0, 300, 16_640, 5];
        let stream: Vec<u8> = payloads.into_iter().flat_map(record).collect();
        let ends: Vec<usize> = payloads
            .iter()
            .scan(0, |end, payload| {
                *end += HEADER_BYTES + payload;
                Some(*end)
            })
            .collect();
        for step in [1, 2, 3, 5, 7, 305, 4096, stream.len()] {
            let (mut records, mut passed) = (Records::default(), 0);
            assert!(records.are_whole());
            for piece in stream.chunks(step) {
                records.pass(piece);
                passed += piece.len();
                assert_eq!(records.are_whole(), ends.contains(&passed), "{step}, at {passed}");
            }
        }
    }
}
