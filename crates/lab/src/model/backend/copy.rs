//! COPY in both directions.

use super::{CopyIn, ModelBackend};
use crate::model::commit::Change;
use crate::model::error::PgError;
use crate::model::wire::{Body, Reader};

impl ModelBackend {
    /// Handles one message while a COPY FROM waits for data.
    pub(super) fn copy_in(&mut self) -> Result<bool, PgError> {
        if let Some(&tag) = self.input.first()
            && !b"dcfHS".contains(&tag)
        {
            // The server says what it did not expect, and then that it has lost its place: it has
            // read the type, but not the message.
            let message = format!("unexpected message type 0x{tag:02X} during COPY from stdin");
            self.send(&PgError::error("08P01", message).encode());
            return Err(PgError::fatal(
                "08P01",
                "terminating connection because protocol synchronization was lost",
            ));
        }
        let Some(message) = self.cut(true)? else { return Ok(false) };
        let mut copy = self.copy.take().expect("the caller has seen it");
        match message.tag {
            b'd' => {
                self.check_cancelled()?;
                for &byte in &message.body {
                    if byte == b'\n' {
                        let line = std::mem::take(&mut copy.line);
                        self.copy_line(&mut copy, &line)?;
                    } else {
                        copy.line.push(byte);
                    }
                }
                self.copy = Some(copy);
            }
            b'c' => {
                self.check_cancelled()?;
                let line = std::mem::take(&mut copy.line);
                if !line.is_empty() {
                    self.copy_line(&mut copy, &line)?;
                }
                let tag = format!("COPY {}", copy.rows);
                if self.executing.is_some() {
                    self.resume_execute(tag);
                } else {
                    self.resume_simple(tag);
                }
            }
            b'f' => {
                let reason = Reader::new(&message.body).text()?;
                let message = format!("COPY from stdin failed: {reason}");
                return Err(PgError::error("57014", message));
            }
            // Flush and Sync: a client may send them without knowing that its Execute was a COPY.
            _ => self.copy = Some(copy),
        }
        Ok(true)
    }

    fn check_cancelled(&mut self) -> Result<(), PgError> {
        let process = self.session().process;
        let cancelled = match self.server.lock().processes.get_mut(&process) {
            Some(found) => std::mem::take(&mut found.cancelled),
            None => false,
        };
        if cancelled { Err(PgError::cancelled()) } else { Ok(()) }
    }

    fn copy_line(&mut self, copy: &mut CopyIn, line: &[u8]) -> Result<(), PgError> {
        copy.ended |= line == b"\\.";
        if copy.ended {
            return Ok(());
        }
        let text = String::from_utf8_lossy(line);
        let value = text.trim().parse::<i32>().map_err(|_| {
            let message = format!("invalid input syntax for type integer: \"{text}\"");
            PgError::error("22P02", message)
        })?;
        copy.rows += 1;
        self.session().change(&copy.relation, Change::Insert(value), "COPY FROM")
    }

    /// Sends rows as COPY TO does; gives the tag.
    pub(super) fn copy_out(&mut self, rows: &[i32]) -> String {
        self.send(&Body::new().byte(0).int16(1).int16(0).message(b'H'));
        for row in rows {
            self.send(&Body::new().bytes(format!("{row}\n").as_bytes()).message(b'd'));
        }
        self.send(&Body::new().message(b'c'));
        format!("COPY {}", rows.len())
    }
}
