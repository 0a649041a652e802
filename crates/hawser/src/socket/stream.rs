//! A connection on the control side: during login, or while it is dialled.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{client, server};

use super::{Conn, TlsConn};

/// A TCP or unix connection, with bytes that were read from it and put back.
#[derive(Debug)]
pub struct Link {
    kind: Kind,
    put_back: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for Link {
    fn from(stream: TcpStream) -> Self {
        Self { kind: Kind::Tcp(stream), put_back: Vec::new() }
    }
}

impl From<UnixStream> for Link {
    fn from(stream: UnixStream) -> Self {
        Self { kind: Kind::Unix(stream), put_back: Vec::new() }
    }
}

impl Link {
    /// Puts bytes back: they are read next.
    pub fn put_back(&mut self, bytes: &[u8]) {
        self.put_back.splice(0..0, bytes.iter().copied());
    }

    /// Whether there is something to read right now.
    pub fn has_input(&mut self) -> bool {
        if !self.put_back.is_empty() {
            return true;
        }
        let mut byte = [0];
        let read = match &self.kind {
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

    #[cfg(test)]
    pub(crate) async fn readable_for_test(&self) {
        match &self.kind {
            Kind::Tcp(stream) => stream.readable().await.unwrap(),
            Kind::Unix(stream) => stream.readable().await.unwrap(),
        }
    }

    fn into_fd(self) -> io::Result<(OwnedFd, Vec<u8>)> {
        let fd = match self.kind {
            Kind::Tcp(stream) => stream.into_std()?.into(),
            Kind::Unix(stream) => stream.into_std()?.into(),
        };
        Ok((fd, self.put_back))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
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
        if !self.put_back.is_empty() {
            let count = self.put_back.len().min(buf.remaining());
            buf.put_slice(&self.put_back[..count]);
            self.put_back.drain(..count);
            return Poll::Ready(Ok(()));
        }
        match &mut self.kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_read(context, buf),
            Kind::Unix(stream) => Pin::new(stream).poll_read(context, buf),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_write(context, buf),
            Kind::Unix(stream) => Pin::new(stream).poll_write(context, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Kind::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Kind::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    /// As it is.
    Plain(Link),
    /// Encrypted; the other end is a client.
    FromClient(Box<server::TlsStream<Link>>),
    /// Encrypted; the other end is a server.
    ToServer(Box<client::TlsStream<Link>>),
}

impl Stream {
    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// What TLS knows of the connection.
    pub fn tls(&self) -> Option<&rustls::CommonState> {
        match self {
            Self::Plain(_) => None,
            Self::FromClient(stream) => Some(stream.get_ref().1),
            Self::ToServer(stream) => Some(stream.get_ref().1),
        }
    }

    /// Hands the connection over: as an event loop has it, and the bytes that were read from it
    /// already.
    ///
    /// # Errors
    /// The descriptor could not be taken out of the runtime.
    pub fn into_conn(self) -> io::Result<(Conn, Vec<u8>)> {
        let (link, session) = match self {
            Self::Plain(link) => {
                let (fd, early) = link.into_fd()?;
                return Ok((Conn::Plain(fd), early));
            }
            Self::FromClient(stream) => {
                let (link, session) = stream.into_inner();
                (link, rustls::Connection::from(session))
            }
            Self::ToServer(stream) => {
                let (link, session) = stream.into_inner();
                (link, rustls::Connection::from(session))
            }
        };
        // What was put back was taken again by the handshake.
        let (fd, _) = link.into_fd()?;
        let (conn, early) = TlsConn::new(fd, session);
        Ok((Conn::Tls(Box::new(conn)), early))
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
            Self::FromClient(stream) => Pin::new(stream.as_mut()).poll_read(context, buf),
            Self::ToServer(stream) => Pin::new(stream.as_mut()).poll_read(context, buf),
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
            Self::FromClient(stream) => Pin::new(stream.as_mut()).poll_write(context, buf),
            Self::ToServer(stream) => Pin::new(stream.as_mut()).poll_write(context, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(link) => Pin::new(link).poll_flush(context),
            Self::FromClient(stream) => Pin::new(stream.as_mut()).poll_flush(context),
            Self::ToServer(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(link) => Pin::new(link).poll_shutdown(context),
            Self::FromClient(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
            Self::ToServer(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
