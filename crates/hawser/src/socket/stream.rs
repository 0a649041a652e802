//! A connection on the control side: during login, or while it is dialled.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hawser_sys::congestion::flows::Flows;
use hawser_sys::listen::abstract_name;
use hawser_sys::mptcp::watch::{Watch, Watched};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{client, server};

use hawser_sys::stream as sys;

use super::{Conn, TlsConn};
use crate::tls::kernel::Records;

/// If less is asked for, this much is read, and the rest put back.
const READ_AHEAD_BYTES: usize = 512;

/// A TCP or unix connection, with bytes that were read from it and put back.
#[derive(Debug)]
pub struct Link {
    kind: Kind,
    put_back: Vec<u8>,
    /// Watches whether its peer is still there, once it is with an event loop.
    watch: Option<Arc<Watch>>,
    /// The same for a connection to a server.
    server_watch: Option<Arc<Watch>>,
    /// May change its congestion control, once it is with an event loop.
    flows: Option<Arc<Flows>>,
    /// It may bypass TCP: a short read does not mean that there is nothing more.
    comes_back: bool,
    /// Of what has been read, since [`Link::begin_records`].
    records: Option<Records>,
}

#[derive(Debug)]
enum Kind {
    /// Not registered with the runtime. A client whose startup packet is there at the accept, and
    /// that needs no proof, never is: that saves two system calls and some memory.
    Fresh(OwnedFd, Family),
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The kind of an accepted connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// TCP, by IPv4 or IPv6.
    Tcp,
    /// A unix socket.
    Unix,
}

impl From<TcpStream> for Link {
    fn from(stream: TcpStream) -> Self {
        Self::new(Kind::Tcp(stream))
    }
}

impl From<UnixStream> for Link {
    fn from(stream: UnixStream) -> Self {
        Self::new(Kind::Unix(stream))
    }
}

/// Connects to a unix socket: a file, or with `@` an abstract one.
///
/// # Errors
/// As connect(2).
pub async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    match abstract_name(path) {
        Some(name) => {
            let path = [b"\0".as_slice(), name].concat(); // tokio takes that as an abstract name
            UnixStream::connect(OsStr::from_bytes(&path)).await
        }
        None => UnixStream::connect(path).await,
    }
}

impl Link {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            put_back: Vec::new(),
            watch: None,
            server_watch: None,
            flows: None,
            comes_back: false,
            records: None,
        }
    }

    /// From a descriptor that was accepted, and does not block.
    pub fn accepted(fd: OwnedFd, family: Family) -> Self {
        Self::new(Kind::Fresh(fd, family))
    }

    /// Puts bytes back: they are read next.
    pub fn put_back(&mut self, bytes: &[u8]) {
        self.put_back.splice(0..0, bytes.iter().copied());
    }

    /// What is read from now on are records of TLS.
    pub fn begin_records(&mut self) {
        self.records = Some(Records::default());
    }

    /// Whether there is something to read right now.
    pub fn has_input(&mut self) -> bool {
        if !self.put_back.is_empty() {
            return true;
        }
        let mut byte = [0];
        let read = match &self.kind {
            Kind::Fresh(fd, _) => sys::recv(fd, &mut byte),
            Kind::Tcp(stream) => stream.try_read(&mut byte),
            Kind::Unix(stream) => stream.try_read(&mut byte),
        };
        match read {
            Ok(1) => {
                self.put_back.push(byte[0]);
                true
            }
            _ => false,
        }
    }

    /// Waits until it has sent something, and is still there to get the answer.
    ///
    /// # Errors
    /// It has gone, or its connection is broken.
    pub async fn speaks(&mut self) -> io::Result<()> {
        if self.put_back.is_empty() {
            let mut ahead = [0; READ_AHEAD_BYTES];
            let read = self.read(&mut ahead).await?;
            self.put_back(&ahead[..read]);
        }
        if self.put_back.is_empty() || sys::peer_has_left(self.as_fd()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) async fn readable_for_test(&self) {
        match &self.kind {
            Kind::Fresh(..) => {}
            Kind::Tcp(stream) => stream.readable().await.unwrap(),
            Kind::Unix(stream) => stream.readable().await.unwrap(),
        }
    }

    /// Watches its peer: for MPTCP, which has no TCP_USER_TIMEOUT.
    pub fn watch(&mut self, watch: Arc<Watch>) {
        self.watch = Some(watch);
    }

    /// Watches its peer, a server.
    pub fn watch_server(&mut self, watch: Arc<Watch>) {
        self.server_watch = Some(watch);
    }

    /// Lets measurements choose its congestion control.
    pub fn tune(&mut self, flows: Arc<Flows>) {
        self.flows = Some(flows);
    }

    /// Reads it until it is empty, because it may bypass TCP.
    pub fn come_back(&mut self) {
        self.comes_back = true;
    }

    fn into_fd(self) -> io::Result<(Watched, Vec<u8>)> {
        let fd: OwnedFd = match self.kind {
            Kind::Fresh(fd, _) => fd,
            Kind::Tcp(stream) => stream.into_std()?.into(),
            Kind::Unix(stream) => stream.into_std()?.into(),
        };
        let mut fd = match self.watch {
            Some(watch) => Watched::new(fd, watch),
            None => fd.into(),
        };
        if let Some(watch) = self.server_watch {
            fd = fd.of_server(watch);
        }
        if let Some(flows) = self.flows {
            fd = fd.tuned(&flows);
        }
        if self.comes_back {
            fd = fd.coming_back();
        }
        Ok((fd, self.put_back))
    }
}

impl Link {
    fn poll_some(
        &mut self,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &self.kind {
            Kind::Tcp(stream) if self.comes_back => loop {
                // (A short `poll_read` takes the stream for empty.)
                ready!(stream.poll_read_ready(context))?;
                match stream.try_read(buf.initialize_unfilled()) {
                    Ok(read) => {
                        buf.advance(read);
                        return Poll::Ready(Ok(()));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
            },
            _ => self.kind.poll_read(context, buf),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Fresh(fd, _) => fd.as_fd(),
            Kind::Tcp(stream) => stream.as_fd(),
            Kind::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.poll_bytes(context, buf);
        if let Some(records) = &mut self.records {
            records.pass(&buf.filled()[before..]);
        }
        read
    }
}

impl Link {
    fn poll_bytes(
        &mut self,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.put_back.is_empty() {
            let count = self.put_back.len().min(buf.remaining());
            buf.put_slice(&self.put_back[..count]);
            self.put_back.drain(..count);
            return Poll::Ready(Ok(()));
        }
        if buf.remaining() >= READ_AHEAD_BYTES {
            return self.poll_some(context, buf);
        }
        // A login reads a length and then a body: this takes one system call for both.
        let mut ahead = [MaybeUninit::uninit(); READ_AHEAD_BYTES];
        let mut ahead = ReadBuf::uninit(&mut ahead);
        ready!(self.poll_some(context, &mut ahead))?;
        let (now, later) = ahead.filled().split_at(buf.remaining().min(ahead.filled().len()));
        buf.put_slice(now);
        self.put_back.extend_from_slice(later);
        Poll::Ready(Ok(()))
    }
}

impl Kind {
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Self::Fresh(fd, _) = self {
            match sys::recv(fd, buf.initialize_unfilled()) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.register()?,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        match self {
            Self::Fresh(..) => unreachable!("it has just been registered"),
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buf),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Self::Fresh(fd, _) = self {
            match sys::send(fd, buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.register()?,
                result => return Poll::Ready(result),
            }
        }
        match self {
            Self::Fresh(..) => unreachable!("it has just been registered"),
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, buf),
        }
    }

    /// Removes it from the runtime that watches it.
    fn leave_runtime(&mut self) -> io::Result<()> {
        *self = match &*self {
            Self::Fresh(..) => return Ok(()),
            Self::Tcp(stream) => Self::Fresh(stream.as_fd().try_clone_to_owned()?, Family::Tcp),
            Self::Unix(stream) => Self::Fresh(stream.as_fd().try_clone_to_owned()?, Family::Unix),
        };
        Ok(())
    }

    /// Makes the runtime watch it.
    fn register(&mut self) -> io::Result<()> {
        if let Self::Fresh(fd, family) = self {
            // A failure must not close the descriptor: the client must get the error.
            let fd = fd.try_clone()?;
            *self = match family {
                Family::Tcp => Self::Tcp(TcpStream::from_std(fd.into())?),
                Family::Unix => Self::Unix(UnixStream::from_std(fd.into())?),
            };
        }
        Ok(())
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.kind.poll_write(context, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Fresh(..) => Poll::Ready(Ok(())),
            Kind::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Kind::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Fresh(fd, _) => Poll::Ready(sys::shutdown_sending(fd)),
            Kind::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Kind::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A TLS connection that ends with a close_notify, wherever it is dropped: without, its peer takes
/// the end for a failure (libpq 17 says of a cancel request that it has failed) or an attack.
#[derive(Debug)]
pub struct Polite<T: Parts>(Option<Box<T>>);

/// A TLS connection of either side.
pub trait Parts {
    /// Sends a close_notify, after what is unsent, as far as that is possible without waiting.
    fn part(&mut self);
}

impl Parts for server::TlsStream<Link> {
    fn part(&mut self) {
        let (link, session) = self.get_mut();
        session.send_close_notify();
        while session.wants_write() && session.write_tls(&mut Sender(link.as_fd())).is_ok() {}
    }
}

impl Parts for client::TlsStream<Link> {
    fn part(&mut self) {
        let (link, session) = self.get_mut();
        session.send_close_notify();
        while session.wants_write() && session.write_tls(&mut Sender(link.as_fd())).is_ok() {}
    }
}

/// Writes to a descriptor without waiting.
struct Sender<'a>(BorrowedFd<'a>);

impl io::Write for Sender<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        sys::send(self.0, buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<T: Parts> From<T> for Polite<T> {
    fn from(stream: T) -> Self {
        Self(Some(Box::new(stream)))
    }
}

impl<T: Parts> Polite<T> {
    fn into_inner(mut self) -> T {
        self.take()
    }

    /// To be dropped next.
    pub(super) fn take(&mut self) -> T {
        *self.0.take().expect("only this takes it")
    }
}

impl<T: Parts> Deref for Polite<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only `take` takes it")
    }
}

impl<T: Parts> DerefMut for Polite<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("only `take` takes it")
    }
}

impl<T: Parts> Drop for Polite<T> {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            stream.part();
        }
    }
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    /// Not encrypted.
    Plain(Link),
    /// Encrypted; the other end is a client.
    FromClient(Polite<server::TlsStream<Link>>),
    /// Encrypted; the other end is a server.
    ToServer(Polite<client::TlsStream<Link>>),
}

impl Stream {
    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Whether it is MPTCP, as [`Link::watch`] was given it: no question to the kernel.
    pub fn is_mptcp(&self) -> bool {
        let link = match self {
            Self::Plain(link) => link,
            Self::FromClient(stream) => stream.get_ref().0,
            Self::ToServer(stream) => stream.get_ref().0,
        };
        link.watch.is_some()
    }

    /// Lets another runtime serve it from now on: the one that uses it next.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn leave_runtime(&mut self) -> io::Result<()> {
        let link = match self {
            Self::Plain(link) => link,
            Self::FromClient(stream) => stream.get_mut().0,
            Self::ToServer(stream) => stream.get_mut().0,
        };
        link.kind.leave_runtime()
    }

    /// The TLS state of the connection.
    pub fn tls(&self) -> Option<&rustls::CommonState> {
        match self {
            Self::Plain(_) => None,
            Self::FromClient(stream) => Some(stream.get_ref().1),
            Self::ToServer(stream) => Some(stream.get_ref().1),
        }
    }

    /// Converts the connection for an event loop, with the bytes that were already read.
    ///
    /// # Errors
    /// The descriptor could not be taken out of the runtime.
    pub fn into_conn(self) -> io::Result<(Conn, Vec<u8>)> {
        let (link, session) = match self {
            Self::Plain(link) => {
                let (fd, early) = link.into_fd()?;
                return Ok((Conn::Plain(fd.into()), early));
            }
            Self::FromClient(stream) => {
                let (link, session) = stream.into_inner().into_inner();
                (link, rustls::Connection::from(session))
            }
            Self::ToServer(stream) => {
                let (link, session) = stream.into_inner().into_inner();
                (link, rustls::Connection::from(session))
            }
        };
        let records = link.records;
        let (fd, put_back) = link.into_fd()?;
        if !put_back.is_empty() {
            // rustls always has room for what was read ahead, and so takes it back. Otherwise the
            // loop would begin in the middle of a record.
            return Err(io::Error::other("ciphertext was left behind by the handshake"));
        }
        let (conn, early) = TlsConn::new(fd.into(), session, records);
        Ok((Conn::Tls(conn.into()), early))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(link) => link.as_fd(),
            Self::FromClient(stream) => stream.get_ref().0.as_fd(),
            Self::ToServer(stream) => stream.get_ref().0.as_fd(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(link) => Pin::new(link).poll_read(context, buf),
            Self::FromClient(stream) => Pin::new(&mut **stream).poll_read(context, buf),
            Self::ToServer(stream) => Pin::new(&mut **stream).poll_read(context, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(link) => Pin::new(link).poll_write(context, buf),
            Self::FromClient(stream) => Pin::new(&mut **stream).poll_write(context, buf),
            Self::ToServer(stream) => Pin::new(&mut **stream).poll_write(context, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(link) => Pin::new(link).poll_flush(context),
            Self::FromClient(stream) => Pin::new(&mut **stream).poll_flush(context),
            Self::ToServer(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(link) => Pin::new(link).poll_shutdown(context),
            Self::FromClient(stream) => Pin::new(&mut **stream).poll_shutdown(context),
            Self::ToServer(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}
