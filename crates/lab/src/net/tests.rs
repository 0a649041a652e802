use super::*;

fn step(net: &Net) -> bool {
    match net.next_arrival() {
        Some(due) => {
            net.advance_to(due);
            true
        }
        None => false,
    }
}

fn small() -> NetConfig {
    NetConfig { capacity_bytes: (1, 64), chunk_bytes_max: 7, ..NetConfig::default() }
}

#[test]
fn bytes_out_are_bytes_in_driven_by_edges_alone() {
    for seed in 0..200 {
        let net = Net::new(seed, small());
        let (writer, reader) = net.pair();
        writer.register(Owner(0), Token(1));
        reader.register(Owner(1), Token(1));
        let sent: Vec<u8> = (0..2000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let (mut at, mut received) = (0, Vec::new());
        loop {
            for event in net.take_events(Owner(0)) {
                if !event.writable {
                    continue;
                }
                while at < sent.len() {
                    match writer.write(&sent[at..]) {
                        Ok(taken) => at += taken,
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                            break;
                        }
                    }
                }
            }
            for event in net.take_events(Owner(1)) {
                if !event.readable {
                    continue;
                }
                let mut buffer = [0; 5];
                loop {
                    match reader.read(&mut buffer) {
                        Ok(taken) => received.extend_from_slice(&buffer[..taken]),
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                            break;
                        }
                    }
                }
            }
            if !net.has_events() && !step(&net) {
                break;
            }
        }
        assert_eq!(received, sent, "seed {seed}: an edge was lost");
    }
}

#[test]
fn a_pipe_holds_no_more_than_its_capacity() {
    let net = Net::new(1, NetConfig { capacity_bytes: (10, 10), ..NetConfig::default() });
    let (writer, reader) = net.pair();
    assert_eq!(writer.write(&[0; 100]).unwrap(), 10);
    assert_eq!(writer.write(&[0; 100]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    while step(&net) {}
    assert_eq!(writer.write(&[0; 100]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(reader.read(&mut [0; 4]).unwrap(), 4);
    assert_eq!(writer.write(&[0; 100]).unwrap(), 4);
}

#[test]
fn a_half_closed_connection_still_carries_the_other_half() {
    let net = Net::new(1, NetConfig::default());
    let (left, right) = net.pair();
    left.write(b"last").unwrap();
    left.shutdown_write();
    while step(&net) {}
    let mut buffer = [0; 8];
    assert_eq!(right.read(&mut buffer).unwrap(), 4);
    assert_eq!(right.read(&mut buffer).unwrap(), 0, "the end");
    right.write(b"answer").unwrap();
    while step(&net) {}
    assert_eq!(left.read(&mut buffer).unwrap(), 6);
    assert_eq!(left.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn closing_with_unread_bytes_is_a_reset_and_not_an_end() {
    let net = Net::new(1, NetConfig::default());
    let (left, right) = net.pair();
    right.register(Owner(0), Token(3));
    net.take_events(Owner(0));
    right.write(b"unread").unwrap();
    while step(&net) {}
    drop(left);
    while step(&net) {}
    let event = net.take_events(Owner(0))[0];
    assert!(event.hangup && event.readable);
    assert_eq!(right.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(right.write(b"x").unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn what_was_sent_before_the_close_arrives() {
    let net = Net::new(1, NetConfig::default());
    let (left, right) = net.pair();
    left.write(b"FATAL").unwrap();
    drop(left);
    while step(&net) {}
    let mut buffer = [0; 8];
    assert_eq!(right.read(&mut buffer).unwrap(), 5);
    assert_eq!(right.read(&mut buffer).unwrap(), 0);
}

#[test]
fn registering_reports_at_once_what_is_ready() {
    let net = Net::new(1, NetConfig::default());
    let (left, right) = net.pair();
    left.write(b"x").unwrap();
    while step(&net) {}
    right.register(Owner(0), Token(1));
    right.register(Owner(5), Token(2));
    assert!(net.take_events(Owner(0)).is_empty(), "moved away before they were taken");
    let event = net.take_events(Owner(5))[0];
    assert!(event.readable && event.writable && !event.hangup);
    assert!(net.take_events(Owner(5)).is_empty(), "edges, not levels");
}

#[test]
fn sockets_may_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<SimSocket>();
    is_send::<Net>();
}
