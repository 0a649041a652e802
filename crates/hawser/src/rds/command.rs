//! The command line of `hawser rds`.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use hawser_datagrams::endpoint::{Endpoint, Options};
use hawser_datagrams::info::to_text;
use hawser_datagrams::ping::{self, Plan as PingPlan};
use hawser_datagrams::proto::TCP_PORT;
use hawser_datagrams::proxy::{self, Place, Proxy};
use hawser_datagrams::stress::{self, MESSAGE_BYTES_MIN, Plan, Show};

use crate::cli::print;
use crate::logging;

const EXIT_CODES: &str = "Exit codes: 0 done (of ping: something answered), 1 failed, 2 wrong usage, \
69 no running proxy.";
const ABSENT: u8 = 69;
/// Where `proxy` listens and `info` asks.
const SOCKET: &str = "/run/hawser/rds.sock";

/// `hawser rds`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct Rds {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check that a host answers, and how fast.
    Ping(Ping),
    /// Measure messages between tasks on two hosts. Without -s it waits for the end with -s.
    Stress(Stress),
    /// Print what a running proxy does: lanes, queues, sequence numbers, retransmissions.
    Info(Info),
    /// Carry datagrams for programs of this machine, by a unix socket; answer pings.
    Proxy(ProxyCommand),
}

#[derive(Debug, Args)]
struct Transport {
    /// TCP port of both hosts.
    #[arg(long, value_name = "PORT", default_value_t = TCP_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    tcp_port: u16,
    /// Lanes to each peer at most: 1, 2, 4 or 8.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = lanes)]
    lanes: usize,
    /// Bytes that may wait in a port's queue and that may be under way for it, as in 2M.
    #[arg(long, value_name = "BYTES", default_value = "2M", value_parser = buffer)]
    buffer: usize,
}

#[derive(Debug, Args)]
struct Ping {
    /// The host to ping.
    #[arg(value_name = "HOST")]
    to: String,
    /// Number of pings [default: no limit].
    #[arg(short, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Time between two pings: seconds, or as in 10ms or 500us.
    #[arg(short, value_name = "TIME", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// This machine's address to ping from [default: that of the route there].
    #[arg(short = 'I', value_name = "ADDR")]
    from: Option<IpAddr>,
    #[command(flatten)]
    transport: Transport,
}

#[derive(Debug, Args)]
struct Stress {
    /// The host of the other end, which waits.
    #[arg(short, long = "send-addr", value_name = "HOST")]
    send: Option<String>,
    /// This end's address [default: that of the connection].
    #[arg(short, long = "recv-addr", value_name = "ADDR")]
    receive: Option<IpAddr>,
    /// TCP port of both ends; RDS ports follow it.
    #[arg(short, long, value_name = "PORT", default_value_t = 4000, value_parser = clap::value_parser!(u16).range(2..))]
    port: u16,
    /// Bytes of an answer.
    #[arg(short, long = "ack-bytes", value_name = "BYTES", default_value_t = MESSAGE_BYTES_MIN, value_parser = bytes)]
    answer: usize,
    /// Bytes of a request.
    #[arg(short = 'q', long = "req-bytes", value_name = "BYTES", default_value = "1024", value_parser = bytes)]
    request: usize,
    /// Unanswered requests at a time, from each task to each task of the other end.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    depth: u32,
    /// Tasks of each end.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    tasks: u16,
    /// Seconds; 0 is until it is ended.
    #[arg(short = 'T', long, value_name = "SECONDS", default_value_t = 0)]
    time: u32,
    /// Requests go one way only.
    #[arg(short)]
    one_way: bool,
    /// Compare what arrives with what was sent.
    #[arg(short, long)]
    verify: bool,
    /// Print only the average.
    #[arg(short = 'z', long = "report-summary")]
    summary_only: bool,
    /// Print the use of all processors.
    #[arg(short, long = "report-cpu")]
    cpu: bool,
    /// Run with real-time priority (SCHED_FIFO), on this end; needs CAP_SYS_NICE.
    #[arg(short = 'R', long)]
    rtprio: bool,
    /// Print a line for each message on standard error, on this end.
    #[arg(short = 'V', long)]
    trace: bool,
    /// Print the parameters before the start.
    #[arg(long)]
    show_params: bool,
    /// Print each second as comma-separated values.
    #[arg(long, conflicts_with = "json")]
    show_perfdata: bool,
    /// How often to try again, each second, where the other end cannot be reached.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=86_400))]
    connect_retries: u32,
    /// Print the average as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    transport: Transport,
}

#[derive(Debug, Args)]
struct Info {
    /// The proxy's socket.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ProxyCommand {
    /// This machine's address.
    #[arg(long, value_name = "ADDR")]
    address: IpAddr,
    /// Where programs connect.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// Mode of the socket: who may connect.
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    mode: u32,
    #[command(flatten)]
    transport: Transport,
}

fn lanes(text: &str) -> Result<usize, String> {
    let found = [1, 2, 4, 8].into_iter().find(|lanes| lanes.to_string() == text);
    found.ok_or_else(|| "1, 2, 4 or 8".to_owned())
}

/// As rds-stress has it: with K, M or G.
fn bytes(text: &str) -> Result<usize, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        _ => return Err("bytes, as in 8K".to_owned()),
    };
    let number: usize = number.parse().map_err(|_| "bytes, as in 8K".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too many".to_owned())
}

fn buffer(text: &str) -> Result<usize, String> {
    let found = bytes(text)?;
    let sizes = 64 << 10..=1 << 30;
    if sizes.contains(&found) { Ok(found) } else { Err("64K to 1G".to_owned()) }
}

fn interval(text: &str) -> Result<Duration, String> {
    let units = [("msec", 1e-3), ("usec", 1e-6), ("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let of = |(unit, scale): (&str, f64)| Some((text.strip_suffix(unit)?, scale));
    let (number, scale) = units.into_iter().find_map(of).unwrap_or((text, 1.0));
    let number: f64 = number.trim().parse().map_err(|_| "seconds, or as in 10ms".to_owned())?;
    match Duration::try_from_secs_f64(number * scale) {
        Ok(time) if time >= Duration::from_micros(100) => Ok(time),
        _ => Err("100us or more".to_owned()),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "three octal digits, as in 660".to_owned())
}

impl Transport {
    fn options(&self, address: IpAddr) -> Options {
        Options { address, tcp_port: self.tcp_port, lanes: self.lanes, buffer_bytes: self.buffer }
    }

    fn open(&self, address: IpAddr) -> Result<Endpoint, String> {
        if address.is_unspecified() || address.is_multicast() {
            return Err(format!(
                "RDS on {address}: give one of this machine's addresses, the one that peers know it by"
            ));
        }
        Endpoint::open(self.options(address)).map_err(|error| {
            let what = match error.kind() {
                io::ErrorKind::AddrInUse => " (the kernel's module, rds_tcp, is no process)",
                io::ErrorKind::AddrNotAvailable => ": it is no address of this machine",
                _ => "",
            };
            format!("RDS on {address}, TCP port {}: {error}{what}", self.tcp_port)
        })
    }
}

/// The address of a name.
fn find(host: &str) -> Result<IpAddr, String> {
    let mut found = (host, 0).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
    found.next().map(|address| address.ip()).ok_or_else(|| format!("{host} has no address"))
}

/// From which address this machine would go there.
fn route(to: IpAddr) -> Result<IpAddr, String> {
    let any: SocketAddr =
        if to.is_ipv4() { ([0; 4], 0).into() } else { (std::net::Ipv6Addr::UNSPECIFIED, 0).into() };
    // Connecting sends nothing.
    let asked = UdpSocket::bind(any).and_then(|socket| {
        socket.connect((to, 1))?;
        socket.local_addr()
    });
    asked.map(|address| address.ip()).map_err(|error| format!("there is no way to {to}: {error}"))
}

impl Rds {
    /// Runs it.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        logging::begin_quietly();
        let result = match &self.command {
            Command::Ping(arguments) => ping_(arguments),
            Command::Stress(arguments) => stress_(arguments),
            Command::Info(arguments) => return info_(arguments),
            Command::Proxy(arguments) => proxy_(arguments),
        };
        match result {
            Ok(code) => code,
            Err(message) => failed(1, &message),
        }
    }
}

fn failed(code: u8, message: &str) -> ExitCode {
    eprintln!("hawser rds: {message}");
    ExitCode::from(code)
}

fn ping_(arguments: &Ping) -> Result<ExitCode, String> {
    let to = find(&arguments.to)?;
    let from = arguments.from.map_or_else(|| route(to), Ok)?;
    let mut endpoint = arguments.transport.open(from)?;
    let (count, interval) = (arguments.count.unwrap_or(0), arguments.interval);
    let came = ping::ping(&mut endpoint, &PingPlan { to, count, interval })?;
    Ok(if came > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn stress_(arguments: &Stress) -> Result<ExitCode, String> {
    let Stress { summary_only, cpu, json, rtprio, trace, show_params, show_perfdata, .. } =
        *arguments;
    let show = Show {
        summary_only,
        cpu,
        json,
        params: show_params,
        perfdata: show_perfdata,
        trace,
        first: rtprio,
    };
    let Some(to) = &arguments.send else {
        stress::passive(arguments.receive, arguments.port, &show)?;
        return Ok(ExitCode::SUCCESS);
    };
    let plan = Plan {
        port: arguments.port,
        depth: arguments.depth,
        request_bytes: arguments.request,
        answer_bytes: arguments.answer,
        tasks: arguments.tasks,
        seconds: arguments.time,
        one_way: arguments.one_way,
        verify: arguments.verify,
        tcp_port: arguments.transport.tcp_port,
        lanes: arguments.transport.lanes,
        buffer_bytes: arguments.transport.buffer,
    };
    if let Err(wrong) = stress::check(&plan) {
        return Ok(failed(2, &wrong));
    }
    stress::active(find(to)?, arguments.receive, plan, arguments.connect_retries, &show)?;
    Ok(ExitCode::SUCCESS)
}

fn info_(arguments: &Info) -> ExitCode {
    match proxy::ask(&arguments.socket) {
        Ok(report) if arguments.json => {
            print(&format!("{report:#}\n"));
            ExitCode::SUCCESS
        }
        Ok(report) => {
            print(&to_text(&report));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let path = arguments.socket.display();
            failed(ABSENT, &format!("no proxy answers at {path}: {error}"))
        }
    }
}

fn proxy_(arguments: &ProxyCommand) -> Result<ExitCode, String> {
    let endpoint = arguments.transport.open(arguments.address)?;
    let place = Place { path: arguments.socket.clone(), mode: arguments.mode };
    let mut proxy = Proxy::open(endpoint, &place)
        .map_err(|error| format!("{}: {error}", arguments.socket.display()))?;
    let port = arguments.transport.tcp_port;
    print(&format!(
        "RDS on {}, TCP port {port}; programs at {}\n",
        arguments.address,
        arguments.socket.display()
    ));
    proxy.run().map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_as_the_tools_have_them() {
        assert_eq!((bytes("8K"), bytes("1M"), bytes("63")), (Ok(8192), Ok(1 << 20), Ok(63)));
        assert!(
            bytes("8X").is_err() && bytes("").is_err() && bytes("99999999999999999999").is_err()
        );
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(interval("500usec"), Ok(Duration::from_micros(500)));
        assert!(interval("0").is_err() && interval("-1").is_err() && interval("x").is_err());
        assert_eq!((lanes("4"), mode("660")), (Ok(4), Ok(0o660)));
        assert!(lanes("3").is_err() && mode("999").is_err() && buffer("1K").is_err());
    }
}
