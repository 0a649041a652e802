//! Connections of the loops: what one end writes, the other reads, in pieces of any size.

use std::os::unix::net::UnixStream as StdUnixStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::stream::{Link, Stream};
use super::*;
use crate::config::TlsMode;
use crate::tls::accept::Accepting;
use crate::tls::connect::{Connecting, server_name};
use crate::tls::tests::Pki;

/// Both ends of a TLS connection, as streams: ours towards a client, and the client's.
async fn tls_pair() -> (Stream, Stream) {
    let pki = Pki::new();
    let accepting = Accepting::load(&pki.accept_settings(TlsMode::Require)).unwrap().unwrap();
    let connecting = Connecting::load(&pki.connect_settings(TlsMode::VerifyFull)).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let accept = accepting.acceptor().accept(Link::from(near));
    let connector = connecting.connector().unwrap();
    let connect = connector.connect(server_name("localhost").unwrap(), Link::from(far));
    let (accepted, connected) = tokio::join!(accept, connect);
    (Stream::FromClient(accepted.unwrap().into()), Stream::ToServer(connected.unwrap().into()))
}

fn would_block<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Sends `bytes` from one end to the other, reading `step` bytes at a time.
fn pump(from: &mut Conn, to: &mut Conn, bytes: &[u8], step: usize) -> Vec<u8> {
    let mut received = Vec::new();
    let mut sent = 0;
    let mut buf = vec![0; step];
    while received.len() < bytes.len() {
        if sent < bytes.len() {
            match from.write(&bytes[sent..]) {
                Ok(written) => sent += written,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        } else {
            assert!(from.flush().is_ok() || would_block(from.flush()));
        }
        loop {
            match to.read(&mut buf) {
                Ok(read) => {
                    received.extend_from_slice(&buf[..read]);
                    if read < buf.len() {
                        break; // drained
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
    }
    received
}

#[tokio::test]
async fn megabytes_cross_a_tls_connection_in_any_pieces() {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 % 251) as u8).collect();
    for step in [100, 4096, 16_384, 65_536] {
        let (near, far) = tls_pair().await;
        let (mut near, _) = near.into_conn().unwrap();
        let (mut far, _) = far.into_conn().unwrap();
        assert!(pump(&mut near, &mut far, &bytes, step) == bytes, "to the client, {step}");
        assert!(pump(&mut far, &mut near, &bytes, step) == bytes, "from the client, {step}");
        assert!(would_block(near.read(&mut [0; 10])));
        assert!(near.is_encrypted());
    }
}

/// As [`tls_pair`], over TCP, as the loops have them; and whether the kernel takes the session of ours.
async fn tcp_conns() -> (Conn, Conn, bool) {
    let pki = Pki::new();
    let accepting = Accepting::load(&pki.accept_settings(TlsMode::Require)).unwrap().unwrap();
    let connecting = Connecting::load(&pki.connect_settings(TlsMode::VerifyFull)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let near = listener.accept().await.unwrap().0;
    // What one end sends the other one has at once.
    for end in [&near, &far] {
        end.set_nodelay(true).unwrap();
    }
    let mut near = Link::from(near);
    near.begin_records();
    let connector = connecting.connector().unwrap();
    let connect = connector.connect(server_name("localhost").unwrap(), Link::from(far));
    let (near, far) = tokio::join!(accepting.acceptor().accept(near), connect);
    let (near, _) = Stream::FromClient(near.unwrap().into()).into_conn().unwrap();
    let (far, _) = Stream::ToServer(far.unwrap().into()).into_conn().unwrap();
    let goes = near.can_move();
    if let Some(reason) = kernel::why_not() {
        assert!(!goes);
        eprintln!("skipped: {reason}");
    }
    (near, far, goes)
}

#[tokio::test]
async fn a_session_goes_to_the_kernel_between_two_records() {
    let (mut near, mut far, goes) = tcp_conns().await;
    if !goes {
        return;
    }
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 7 % 251) as u8).collect();
    assert!(pump(&mut near, &mut far, &bytes, 4096) == bytes);
    assert!(pump(&mut far, &mut near, &bytes, 4096) == bytes);
    let (Conn::Tls(tls), Conn::Tls(client)) = (&mut near, &mut far) else { panic!() };
    // A record of which half has come.
    let mut record = Vec::new();
    client.session.writer().write_all(b"in two").unwrap();
    client.session.write_tls(&mut record).unwrap();
    assert_eq!(client.fd.send(&record[..9]).unwrap(), 9);
    assert!(would_block(tls.read(&mut [0; 10])));
    assert!(!near.let_go());
    let Conn::Tls(client) = &mut far else { panic!() };
    assert_eq!(client.fd.send(&record[9..]).unwrap(), record.len() - 9);
    let mut buf = [0; 10];
    assert_eq!(near.read(&mut buf).unwrap(), 6);
    // A client's change of keys, which is to be answered.
    let Conn::Tls(client) = &mut far else { panic!() };
    client.session.refresh_traffic_keys().unwrap();
    far.flush().unwrap();
    assert!(would_block(near.read(&mut buf)));
    assert!(near.let_go());
    assert!(matches!(near, Conn::Kernel(_)) && near.is_encrypted() && near.can_move());
    for step in [100, 16_384] {
        assert!(pump(&mut near, &mut far, &bytes, step) == bytes, "to the client, {step}");
        assert!(pump(&mut far, &mut near, &bytes, step) == bytes, "from the client, {step}");
    }
    assert!(would_block(near.read(&mut buf)));
    near.shutdown();
    assert_eq!(far.read(&mut buf).unwrap(), 0);
    let Conn::Tls(client) = &mut far else { panic!() };
    assert!(client.at_end(), "that was a close_notify");
    far.shutdown();
    assert_eq!(near.read(&mut buf).unwrap(), 0);
}

#[tokio::test]
async fn a_client_that_changes_keys_which_the_kernel_has_is_refused() {
    let (mut near, mut far, goes) = tcp_conns().await;
    if goes && near.let_go() {
        let Conn::Tls(client) = &mut far else { panic!() };
        client.session.refresh_traffic_keys().unwrap();
        far.flush().unwrap();
        let error = near.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_costs_a_bounded_amount() {
    let (near, _far) = tls_pair().await;
    let (mut near, _) = near.into_conn().unwrap();
    let mut taken = 0;
    loop {
        match near.write(&[1; 100_000]) {
            Ok(written) => taken += written,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
        assert!(taken < 4 << 20, "the kernel's buffer is smaller than that");
    }
    assert!(would_block(near.flush()));
}

#[tokio::test]
async fn what_tls_has_decrypted_before_the_hand_over_is_not_lost() {
    let (mut near, mut far) = tls_pair().await;
    far.write_all(b"password and a query").await.unwrap();
    far.flush().await.unwrap();
    let mut password = [0; 8];
    near.read_exact(&mut password).await.unwrap();
    let (_near, early) = near.into_conn().unwrap();
    assert_eq!(early, b" and a query");
}

#[tokio::test]
async fn the_end_comes_after_the_last_bytes() {
    let (near, far) = tls_pair().await;
    let (mut near, _) = near.into_conn().unwrap();
    let (mut far, _) = far.into_conn().unwrap();
    assert_eq!(far.write(b"bye").unwrap(), 3);
    far.flush().unwrap();
    far.shutdown();
    let mut buf = [0; 10];
    assert_eq!(near.read(&mut buf).unwrap(), 3);
    assert_eq!(near.read(&mut buf).unwrap(), 0);
    assert_eq!(near.read(&mut buf).unwrap(), 0, "and it stays the end");
}

#[tokio::test]
async fn ciphertext_that_is_none_is_an_error_and_not_an_answer() {
    let (near, far) = tls_pair().await;
    let (mut near, _) = near.into_conn().unwrap();
    let Stream::ToServer(mut far) = far else { panic!() };
    let (link, _) = far.get_mut();
    sys::send(link.as_fd(), b"SELECT 1; not TLS at all").unwrap();
    let error = near.read(&mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn a_plain_connection_keeps_what_was_put_back() {
    let (near, far) = StdUnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let mut link = Link::from(UnixStream::from_std(near).unwrap());
    assert!(!link.has_input());
    sys::send(&far, b"cd").unwrap();
    link.readable_for_test().await;
    assert!(link.has_input());
    link.put_back(b"ab");
    let mut stream = Stream::Plain(link);
    let mut head = [0; 1];
    stream.read_exact(&mut head).await.unwrap();
    let (mut conn, early) = stream.into_conn().unwrap();
    assert_eq!((head, early), (*b"a", b"bc".to_vec()));
    let mut rest = [0; 4];
    assert_eq!(conn.read(&mut rest).unwrap(), 1);
    assert_eq!(rest[0], b'd');
    assert!(!conn.is_encrypted());
}

#[tokio::test]
async fn a_connection_with_ciphertext_left_by_tls_is_not_handed_over() {
    let (mut ours, _theirs) = tls_pair().await;
    let Stream::FromClient(stream) = &mut ours else { unreachable!() };
    stream.get_mut().0.put_back(b"half a record");
    assert!(ours.into_conn().is_err());
}

#[tokio::test]
async fn what_tls_holds_while_the_socket_is_full_counts_as_unsent() {
    let (ours, theirs) = tls_pair().await;
    let (mut ours, _) = ours.into_conn().unwrap();
    let (mut theirs, _) = theirs.into_conn().unwrap();
    assert!(!ours.has_unsent());
    while !ours.has_unsent() {
        ours.write(&[7; 64 * 1024]).unwrap();
    }
    let mut buf = vec![0; 64 * 1024];
    while ours.has_unsent() {
        let _ = theirs.read(&mut buf);
        let _ = ours.flush();
    }
}
