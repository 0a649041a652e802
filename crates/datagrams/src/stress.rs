//! `hawser rds stress`: messages between groups of tasks on two hosts, as rds-stress sends them.
//!
//! # Model
//! One end waits (passive), the other connects to it by TCP, sends the task, and both do it. Task n
//! of each end has RDS port `port + 1 + n`, and keeps `depth` requests to each task of the other
//! end unanswered; each request is answered at once.
//! ```text
//!   2 s until all begin, 2 s that do not count, then a line each second, and the average at the end
//!   tsks   tasks                        tx/s, rx/s     requests sent and received
//!   tx+rx K/s  bytes of requests and answers, sent and received, in KiB
//!   tx us/c    microseconds of a send   rtt us         from a request to its answer
//!   cpu %      of all processors, by everything on this machine (-c), else -1
//!   --show-perfdata prints each second as `::tasks,request,answer,0,requests,K/s,0,0,us/c,rtt,cpu`
//! ```
//! # Why not
//! One process for each task, as there: ports of one host share connections, so one thread has them.
//! rds-stress measures CPU by programs that spin; this reads what the kernel accounts.
//!
//! # Limits
//! No RDMA: `mbi` and `mbo` are 0, and its options are not there; nor is -Q. The two ends agree by a
//! line of JSON, so the other end must be a Hawser.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hawser_sys::dial::dial_waiting;
use hawser_sys::precision::{Priority, come_before_ordinary};
use hawser_sys::terminal::print;
use hawser_time::Time;
use serde::{Deserialize, Serialize};

use self::meeting::{Asked, Meeting, PLAN_AFTER, refuse};
use super::endpoint::{Endpoint, Options, PortEvent, now};
use crate::proto::node::SendError;

mod meeting;

/// `struct header` of rds-stress.c, which each message begins with.
pub const MESSAGE_BYTES_MIN: usize = 63;
const OPERATION_AT: usize = 18;
const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

/// All tasks are there after this, and the first figures count after as much again.
const BEGIN: Duration = Duration::from_secs(2);
/// How long the other end may take to say what comes next.
const SAYS_AFTER: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);
/// Control connections are tried for so long: the other end may be starting.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// What the other end says of itself is no longer than this.
const LINE_MAX: usize = 4096;
/// What is under way when a measurement ends has so long to arrive.
const ARRIVES_AFTER: Duration = Duration::from_secs(10);
/// Seconds that are kept one by one.
const SECONDS_MAX: usize = 3600;
/// Tasks at most: ports follow each other.
pub const TASKS_MAX: u16 = 512;

/// What both ends do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The control connection's port; RDS ports follow.
    pub port: u16,
    /// Requests that each task has unanswered to each of the others.
    pub depth: u32,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Bytes of an answer.
    pub answer_bytes: usize,
    /// Tasks of each end.
    pub tasks: u16,
    /// Seconds that count; 0 is until one end is ended.
    pub seconds: u32,
    /// Only the active end sends requests.
    pub one_way: bool,
    /// Messages have a pattern, which is compared.
    pub verify: bool,
    /// TCP's port of RDS.
    pub tcp_port: u16,
    /// Lanes.
    pub lanes: usize,
    /// Bytes that may wait and be under way for each port.
    pub buffer_bytes: usize,
}

/// What is only this end's.
#[derive(Clone, Debug, Default)]
pub struct Show {
    /// Only the average.
    pub summary_only: bool,
    /// CPU use.
    pub cpu: bool,
    /// The average as JSON, in place of the table.
    pub json: bool,
    /// What is to be done, before it is.
    pub params: bool,
    /// Each second as values with commas, in place of a row.
    pub perfdata: bool,
    /// A line for each message, on standard error.
    pub trace: bool,
    /// Before all ordinary threads.
    pub first: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests_sent: u64,
    requests_received: u64,
    bytes: u64,
    sends: u64,
    send_ns: u64,
    answers: u64,
    rtt_us: u64,
}

impl Counts {
    fn minus(&self, before: &Self) -> Self {
        Self {
            requests_sent: self.requests_sent - before.requests_sent,
            requests_received: self.requests_received - before.requests_received,
            bytes: self.bytes - before.bytes,
            sends: self.sends - before.sends,
            send_ns: self.send_ns - before.send_ns,
            answers: self.answers - before.answers,
            rtt_us: self.rtt_us - before.rtt_us,
        }
    }
}

/// From one task here to one there.
#[derive(Debug, Default)]
struct Flow {
    sent_at: VecDeque<Time>,
    answers_due: u32,
    number: u32,
}

#[derive(Debug)]
struct Task {
    port: u16,
    flows: Vec<Flow>,
}

struct Run {
    endpoint: Endpoint,
    plan: Plan,
    to: IpAddr,
    sends_requests: bool,
    tasks: Vec<Task>,
    counts: Counts,
    request: Vec<u8>,
    answer: Vec<u8>,
    traces: bool,
    /// The other end ends, too: what it looks like is no news.
    is_over: bool,
    busy: BTreeSet<usize>,
}

/// Waits for an active end and does what it says.
///
/// # Errors
/// In words.
pub fn passive(address: Option<IpAddr>, port: u16, show: &Show) -> Result<(), String> {
    let address = address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let there = SocketAddr::new(address, port);
    let failed = |error: io::Error| format!("{there}: {error}");
    let listener = TcpListener::bind(there).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    print(&format!("waiting for incoming connection on {bound}\n"));
    let mut meeting = Meeting::open(listener).map_err(failed)?;
    loop {
        let asked = meeting.next().map_err(failed)?;
        match begin(&asked, port) {
            Ok(run) => {
                meeting.close();
                return run.run(&asked.control, false, show);
            }
            Err(error) => refuse(&asked.control, asked.from, &error),
        }
    }
}

/// Opens this end for what an active one wants, and has that begin.
fn begin(asked: &Asked, port: u16) -> Result<Run, String> {
    let Asked { control, from, plan } = asked;
    let here = control.local_addr().map_err(|error| error.to_string())?.ip().to_canonical();
    print(&format!("accepted connection from {from} on {here}:{port}\n"));
    let run = Run::new(plan.clone(), here, from.ip().to_canonical(), false)?;
    say(control, "ready")?;
    let mut reader = reader(control).map_err(|error| error.to_string())?;
    expect(&mut reader, "go", PLAN_AFTER)?;
    Ok(run)
}

/// Connects to a passive end and says what is to be done.
///
/// # Errors
/// In words.
pub fn active(
    to: IpAddr,
    from: Option<IpAddr>,
    plan: Plan,
    retries: u32,
    show: &Show,
) -> Result<(), String> {
    if show.params {
        print(&params(&plan));
    }
    let there = SocketAddr::new(to, plan.port);
    if !show.json {
        print(&format!("connecting to {there}\n"));
    }
    let control = connect(from, there, retries).map_err(|error| format!("{there}: {error}"))?;
    let here = control.local_addr().map_err(|error| error.to_string())?.ip().to_canonical();
    let mut reader = reader(&control).map_err(|error| error.to_string())?;
    let run = Run::new(plan, here, to, true)?;
    say(&control, &serde_json::to_string(&run.plan).map_err(|error| error.to_string())?)?;
    expect(&mut reader, "ready", SAYS_AFTER)?;
    say(&control, "go")?;
    if !show.json {
        print("negotiated options, tasks will start in 2 seconds\n");
    }
    run.run(&control, true, show)
}

/// As rds-stress prints it.
fn params(plan: &Plan) -> String {
    let Plan { tasks, request_bytes, answer_bytes, .. } = plan;
    format!(
        "Options:\n  {:<10} {tasks:<7}\n  {:<10} {request_bytes:<7}\n  {:<10} {answer_bytes:<7}\n  \
         {:<10} {:<7}\n\n",
        "Tasks", "Req size", "ACK size", "RDMA size", 0
    )
}

/// Tries again `retries` times, a second apart, if there is no listener or no route; without
/// `retries`, for some seconds if there is no listener yet.
fn connect(from: Option<IpAddr>, to: SocketAddr, retries: u32) -> io::Result<TcpStream> {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let again = [ConnectionRefused, HostUnreachable, NetworkUnreachable];
    let (again, mut left, each) = if retries > 0 {
        (&again[..], retries, Duration::from_secs(1))
    } else {
        let each = Duration::from_millis(100);
        (&again[..1], (CONNECT_MAX.as_millis() / each.as_millis()) as u32, each)
    };
    loop {
        let result = match from {
            None => TcpStream::connect(to),
            Some(from) => dial_waiting(from, to, CONNECT_MAX),
        };
        match result {
            Err(error) if again.contains(&error.kind()) && left > 0 => {
                left -= 1;
                std::thread::sleep(each);
            }
            other => return other,
        }
    }
}

fn reader(control: &TcpStream) -> io::Result<BufReader<TcpStream>> {
    Ok(BufReader::new(control.try_clone()?))
}

fn say(mut control: &TcpStream, line: &str) -> Result<(), String> {
    control
        .write_all(format!("{line}\n").as_bytes())
        .map_err(|error| format!("the other end: {error}"))
}

/// What the other end says next. However it divides that, it is waited for no longer than this.
fn line(reader: &mut BufReader<TcpStream>, within: Duration) -> Result<String, String> {
    let until = Instant::now() + within;
    let failed = |error: io::Error| format!("the other end: {error}");
    let mut line = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let late =
            || format!("the other end has not said within {} s what is next", within.as_secs());
        if left.is_zero() {
            return Err(late());
        }
        reader.get_ref().set_read_timeout(Some(left)).map_err(failed)?;
        let bytes = match reader.fill_buf() {
            Ok([]) => {
                return Err("the other end has left: what it has printed says why".to_owned());
            }
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(bytes.len(), |end| end + 1);
        line.extend_from_slice(&bytes[..count]);
        reader.consume(count);
        if line.len() > LINE_MAX {
            return Err(format!("the other end says more than {LINE_MAX} bytes in one line"));
        }
        if end.is_some() {
            return String::from_utf8(line)
                .map_err(|_| "the other end says what is no text".to_owned());
        }
    }
}

fn expect(reader: &mut BufReader<TcpStream>, word: &str, within: Duration) -> Result<(), String> {
    let line = line(reader, within)?;
    if line.trim() == word { Ok(()) } else { Err(format!("the other end says: {}", line.trim())) }
}

/// A plan from the network is checked as one from the command line is.
///
/// # Errors
/// What it says that cannot be.
pub fn check(plan: &Plan) -> Result<(), String> {
    let size = MESSAGE_BYTES_MIN..=1 << 20;
    if !size.contains(&plan.request_bytes) || !size.contains(&plan.answer_bytes) {
        return Err(format!(
            "requests (-q) and answers (-a) have {MESSAGE_BYTES_MIN} bytes to 1 MiB, and these have \
             {} and {}",
            plan.request_bytes, plan.answer_bytes
        ));
    }
    if plan.tasks == 0 || plan.tasks > TASKS_MAX || plan.port.checked_add(plan.tasks).is_none() {
        return Err(format!(
            "tasks (-t) are 1 to {TASKS_MAX}, each with a port after the one that -p gives: {} after \
             {} are too many, or none",
            plan.tasks, plan.port
        ));
    }
    if ![1, 2, 4, 8].contains(&plan.lanes) || plan.depth == 0 || plan.depth > 100_000 {
        return Err(format!(
            "--lanes is 1, 2, 4 or 8, and the depth (-d) 1 to 100000: these are {} and {}",
            plan.lanes, plan.depth
        ));
    }
    if !(1 << 20..=1 << 30).contains(&plan.buffer_bytes) {
        return Err(format!("--buffer is 1M to 1G here, and this is {} bytes", plan.buffer_bytes));
    }
    Ok(())
}

/// The pattern of rds-stress.c: a generator of Z(256), shifted by one each 256 bytes.
fn pattern(bytes: &mut [u8]) {
    let mut k: u32 = 11;
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = k as u8;
        k = 41u32.wrapping_mul(k.wrapping_add(3)).wrapping_add((at as u32) >> 8);
    }
}

impl Run {
    fn new(plan: Plan, here: IpAddr, to: IpAddr, active: bool) -> Result<Self, String> {
        let options = Options {
            address: here,
            tcp_port: plan.tcp_port,
            lanes: plan.lanes,
            buffer_bytes: plan.buffer_bytes,
        };
        let mut endpoint = Endpoint::open(options)
            .map_err(|error| format!("RDS on {here}:{}: {error}", plan.tcp_port))?;
        let mut tasks = Vec::new();
        for at in 0..plan.tasks {
            let port = endpoint.bind(plan.port + 1 + at).map_err(|error| error.to_string())?;
            let flows = (0..plan.tasks).map(|_| Flow::default()).collect();
            tasks.push(Task { port, flows });
        }
        let message = |bytes: usize, operation: u8| {
            let mut message = vec![0; bytes];
            if plan.verify {
                pattern(&mut message[MESSAGE_BYTES_MIN..]);
            }
            message[OPERATION_AT] = operation;
            message
        };
        Ok(Self {
            request: message(plan.request_bytes, REQUEST),
            answer: message(plan.answer_bytes, ANSWER),
            sends_requests: active || !plan.one_way,
            traces: false,
            is_over: false,
            busy: (0..tasks.len()).collect(),
            counts: Counts::default(),
            endpoint,
            plan,
            to,
            tasks,
        })
    }

    fn run(mut self, control: &TcpStream, active: bool, show: &Show) -> Result<(), String> {
        const CONTROL: u64 = 1;
        let failed = |error: io::Error| error.to_string();
        control.set_nonblocking(true).map_err(failed)?;
        self.traces = show.trace;
        if show.first && come_before_ordinary() == Priority::Ordinary {
            return Err("-R needs CAP_SYS_NICE".to_owned());
        }
        self.endpoint.watch(control, CONTROL).map_err(failed)?;
        let mut gone = false;
        self.work_until(now().after(BEGIN), false, &mut gone)?;
        self.work_until(now().after(BEGIN), true, &mut gone)?;
        let plan = self.plan.clone();
        let mut table = Table::new(show, &plan, self.counts);
        let over = table.first.after(Duration::from_secs(plan.seconds.into()));
        loop {
            self.work_until(now().after(SECOND), true, &mut gone)?;
            // A second in which the other end has stopped is none.
            if gone {
                break;
            }
            table.sample(self.counts);
            if active && plan.seconds > 0 && now() >= over {
                break;
            }
        }
        let lanes = self.endpoint.report();
        table.end(&lanes);
        if active && gone {
            let seconds = table.last.since(table.first).as_secs();
            return Err(format!("the other end has ended; {seconds} s were measured"));
        }
        // The other end stops now, and what is under way arrives before the connections end.
        let _ = control.shutdown(Shutdown::Write);
        self.sends_requests = false;
        self.is_over = true;
        self.finish()
    }

    /// Answers, and has answered, what is under way: until nothing has come for a second, and all that was sent is
    /// acknowledged.
    fn finish(mut self) -> Result<(), String> {
        let until = now().after(ARRIVES_AFTER);
        loop {
            let before = self.counts.bytes;
            self.work_until(now().after(SECOND), true, &mut false)?;
            let left = self.endpoint.unacknowledged();
            if left == 0 && self.counts.bytes == before {
                return Ok(());
            }
            if now() >= until {
                eprintln!(
                    "hawser rds stress: {left} messages that were sent last are not acknowledged"
                );
                return Ok(());
            }
        }
    }

    fn work_until(&mut self, until: Time, working: bool, gone: &mut bool) -> Result<(), String> {
        while !*gone && now() < until {
            if working {
                for task in std::mem::take(&mut self.busy) {
                    self.fill(task)?;
                }
            }
            let wait = until.since(now());
            self.endpoint.turn(wait).map_err(|error| error.to_string())?;
            *gone |= self.endpoint.take_others().iter().any(|event| event.hangup);
            while let Some(event) = self.endpoint.next_event() {
                let (PortEvent::Readable(port) | PortEvent::Room(port)) = event;
                let task = usize::from(port.wrapping_sub(self.plan.port + 1));
                if event == PortEvent::Readable(port) {
                    self.take(task)?;
                }
                self.busy.insert(task);
            }
            while let Some(notice) = self.endpoint.next_notice() {
                if !self.is_over {
                    eprintln!("hawser rds stress: {notice}");
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize) -> Result<(), String> {
        let port = self.tasks[at].port;
        while let Some(datagram) = self.endpoint.receive(port) {
            let from = usize::from(datagram.port.wrapping_sub(self.plan.port + 1));
            let body = &datagram.body;
            let Some(flow) =
                self.tasks[at].flows.get_mut(from).filter(|_| datagram.from == self.to)
            else {
                continue; // of another program
            };
            let operation = body.get(OPERATION_AT).copied();
            let wanted = if operation == Some(REQUEST) { &self.request } else { &self.answer };
            if body.len() != wanted.len()
                || (self.plan.verify && body[MESSAGE_BYTES_MIN..] != wanted[MESSAGE_BYTES_MIN..])
            {
                return Err(format!(
                    "a message of {} bytes from {}:{} is not what was sent",
                    body.len(),
                    datagram.from,
                    datagram.port
                ));
            }
            self.counts.bytes += body.len() as u64;
            if self.traces {
                trace("received", operation, body.len(), (datagram.port, port));
            }
            if operation == Some(REQUEST) {
                self.counts.requests_received += 1;
                flow.answers_due += 1;
            } else if let Some(sent_at) = flow.sent_at.pop_front() {
                self.counts.answers += 1;
                self.counts.rtt_us += now().micros_since(sent_at);
            }
        }
        Ok(())
    }

    /// Sends what a task may send: answers first.
    fn fill(&mut self, at: usize) -> Result<(), String> {
        let depth = if self.sends_requests { self.plan.depth as usize } else { 0 };
        for other in 0..self.tasks[at].flows.len() {
            loop {
                let flow = &self.tasks[at].flows[other];
                let is_answer = flow.answers_due > 0;
                if !is_answer && flow.sent_at.len() >= depth {
                    break;
                }
                match self.send(at, other, is_answer) {
                    Ok(()) => {}
                    Err(SendError::Congested) => break, // this one; others may have room
                    Err(SendError::Full) => return Ok(()),
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, at: usize, other: usize, is_answer: bool) -> Result<(), SendError> {
        let (from, to) = (self.tasks[at].port, self.tasks[other].port);
        let flow = &mut self.tasks[at].flows[other];
        let message = if is_answer { &mut self.answer } else { &mut self.request };
        message[..4].copy_from_slice(&flow.number.to_be_bytes());
        message[12..14].copy_from_slice(&from.to_be_bytes());
        message[14..16].copy_from_slice(&to.to_be_bytes());
        let began = Instant::now();
        self.endpoint.send(from, (self.to, to), message)?;
        self.counts.send_ns += began.elapsed().as_nanos() as u64;
        self.counts.sends += 1;
        if self.traces {
            trace("sent", message.get(OPERATION_AT).copied(), message.len(), (from, to));
        }
        self.counts.bytes += message.len() as u64;
        flow.number = flow.number.wrapping_add(1);
        if is_answer {
            flow.answers_due -= 1;
        } else {
            flow.sent_at.push_back(now());
            self.counts.requests_sent += 1;
        }
        Ok(())
    }
}

/// A message, in one line of standard error.
fn trace(done: &str, operation: Option<u8>, bytes: usize, (from, to): (u16, u16)) {
    let kind = if operation == Some(REQUEST) { "request" } else { "answer" };
    eprintln!("{done} {kind} of {bytes} bytes, port {from} to {to}");
}

/// What is printed.
struct Table<'a> {
    show: &'a Show,
    plan: &'a Plan,
    first: Time,
    last: Time,
    at_first: Counts,
    at_last: Counts,
    cpu_first: Option<(u64, u64)>,
    cpu_last: Option<(u64, u64)>,
    /// Requests sent in each second that counts.
    each_second: Vec<u64>,
}

impl<'a> Table<'a> {
    fn new(show: &'a Show, plan: &'a Plan, counts: Counts) -> Self {
        if !show.json && !show.perfdata {
            print(&format!(
                "{:>4} {:>6} {:>6} {:>10} {:>10} {:>10} {:>7} {:>8} {:>5}\n",
                "tsks",
                "tx/s",
                "rx/s",
                "tx+rx K/s",
                "mbi K/s",
                "mbo K/s",
                "tx us/c",
                "rtt us",
                "cpu %"
            ));
        }
        let cpu = processors();
        let now = now();
        Self {
            show,
            plan,
            first: now,
            last: now,
            at_first: counts,
            at_last: counts,
            cpu_first: cpu,
            cpu_last: cpu,
            each_second: Vec::new(),
        }
    }

    fn sample(&mut self, counts: Counts) {
        let (now, cpu) = (now(), processors());
        if !self.show.summary_only && !self.show.json {
            let done = counts.minus(&self.at_last);
            let (time, cpu) = (now.since(self.last), self.cpu(self.cpu_last, cpu));
            print(&match self.show.perfdata {
                true => values(self.plan, done, time, cpu),
                false => row(self.plan.tasks, done, time, cpu, ""),
            });
        }
        if self.show.json && self.each_second.len() < SECONDS_MAX {
            self.each_second.push(counts.minus(&self.at_last).requests_sent);
        }
        (self.last, self.at_last, self.cpu_last) = (now, counts, cpu);
    }

    fn end(&self, report: &crate::proto::node::report::Report) {
        let done = self.at_last.minus(&self.at_first);
        let time = self.last.since(self.first);
        let cpu = self.cpu(self.cpu_first, self.cpu_last);
        if self.show.json {
            let seconds = time.as_secs_f64().max(1e-6);
            let peer = report.peers.first();
            let lanes = peer.iter().flat_map(|peer| &peer.lanes).map(|lane| {
                serde_json::json!({
                    "sent": lane.counts.sent,
                    "received": lane.counts.received,
                    "bytes_sent": lane.counts.bytes_sent,
                    "connections": lane.counts.connections,
                    "retransmitted": lane.counts.again,
                    "duplicates": lane.counts.duplicates,
                })
            });
            let summary = serde_json::json!({
                "seconds": time.as_secs_f64(),
                "tasks": self.plan.tasks,
                "requests_sent_s": done.requests_sent as f64 / seconds,
                "requests_received_s": done.requests_received as f64 / seconds,
                "bytes_s": done.bytes as f64 / seconds,
                "send_us": average(done.send_ns, done.sends) / 1000.0,
                "rtt_us": average(done.rtt_us, done.answers),
                "cpu_percent": cpu,
                "lanes": lanes.collect::<Vec<_>>(),
                "requests_each_second": self.each_second,
            });
            return print(&format!("{summary}\n"));
        }
        if !self.show.summary_only {
            print("---------------------------------------------\n");
        }
        print(&row(self.plan.tasks, done, time, cpu, "  (average)"));
    }

    fn cpu(&self, before: Option<(u64, u64)>, now: Option<(u64, u64)>) -> f64 {
        match (self.show.cpu, before, now) {
            (true, Some((busy_before, all_before)), Some((busy, all))) if all > all_before => {
                100.0 * (busy - busy_before) as f64 / (all - all_before) as f64
            }
            _ => -1.0,
        }
    }
}

fn average(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

fn row(tasks: u16, done: Counts, time: Duration, cpu: f64, after: &str) -> String {
    let scale = 1.0 / time.as_secs_f64().max(1e-6);
    format!(
        "{tasks:4} {:6} {:6} {:10.2} {:10.2} {:10.2} {:7.2} {:8.2} {cpu:5.2}{after}\n",
        (done.requests_sent as f64 * scale) as u64,
        (done.requests_received as f64 * scale) as u64,
        done.bytes as f64 * scale / 1024.0,
        0.0,
        0.0,
        average(done.send_ns, done.sends) / 1000.0,
        average(done.rtt_us, done.answers)
    )
}

/// A second, as values with commas.
fn values(plan: &Plan, done: Counts, time: Duration, cpu: f64) -> String {
    let Plan { tasks, request_bytes, answer_bytes, .. } = plan;
    format!(
        "::{tasks},{request_bytes},{answer_bytes},0,{},{:.6},{:.6},{:.6},{:.6},{:.6},{:.6}\n",
        done.requests_sent,
        done.bytes as f64 / time.as_secs_f64().max(1e-6) / 1024.0,
        0.0,
        0.0,
        average(done.send_ns, done.sends) / 1000.0,
        average(done.rtt_us, done.answers),
        cpu.max(0.0)
    )
}

/// Time that all processors were busy, and all of it (proc_stat(5)).
fn processors() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let numbers: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
    let all: u64 = numbers.iter().take(8).sum();
    let idle = numbers.get(3)? + numbers.get(4)?;
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn plan() -> Plan {
        Plan {
            port: 4000,
            depth: 1,
            request_bytes: 1024,
            answer_bytes: 63,
            tasks: 2,
            seconds: 1,
            one_way: false,
            verify: true,
            tcp_port: 1,
            lanes: 8,
            buffer_bytes: 2 << 20,
        }
    }

    #[test]
    fn a_plan_from_the_network_is_checked() {
        check(&plan()).unwrap();
        let wrong = [
            Plan { request_bytes: 62, ..plan() },
            Plan { answer_bytes: (1 << 20) + 1, ..plan() },
            Plan { tasks: 0, ..plan() },
            Plan { tasks: TASKS_MAX + 1, ..plan() },
            Plan { port: 65_535, ..plan() },
            Plan { lanes: 3, ..plan() },
            Plan { depth: 0, ..plan() },
            Plan { buffer_bytes: 10, ..plan() },
        ];
        for plan in wrong {
            check(&plan).unwrap_err();
        }
    }

    #[test]
    fn the_columns_are_those_of_rds_stress() {
        let done = Counts {
            requests_sent: 2000,
            requests_received: 1000,
            bytes: 4 << 20,
            sends: 10,
            send_ns: 15_000,
            answers: 4,
            rtt_us: 402,
        };
        let line = row(8, done, Duration::from_secs(2), -1.0, "");
        assert_eq!(
            line,
            "   8   1000    500    2048.00       0.00       0.00    1.50   100.50 -1.00\n"
        );
    }

    #[test]
    fn a_second_as_values_and_the_parameters_are_those_of_rds_stress() {
        let done = Counts { requests_sent: 20, bytes: 2048, ..Counts::default() };
        let line = values(&plan(), done, Duration::from_secs(1), -1.0);
        let zeros = ",0.000000".repeat(5);
        assert_eq!(line, format!("::2,1024,63,0,20,2.000000{zeros}\n"));
        assert!(params(&plan()).contains("  Req size   1024"), "{}", params(&plan()));
    }

    #[test]
    fn the_pattern_shows_blocks_in_the_wrong_place() {
        let mut bytes = [0; 1024];
        pattern(&mut bytes);
        assert_eq!(bytes[..3], [11, (41 * 14) as u8, (41u32 * (574 + 3)) as u8]);
        assert_ne!(bytes[..256], bytes[256..512]);
    }
}
