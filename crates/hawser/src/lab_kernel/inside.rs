//! The only program of the laboratory's kernel: its init.
//!
//! # Invariants
//! * it ends with the machine off, whatever happens: an init that returns is a kernel's panic
//! * it writes nothing but to the exchange, and to file systems in memory

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use hawser_congestion::cc::serve::PORT_DEFAULT;
use hawser_lab::namespaces::selftest::Findings;
use hawser_sys::congestion;

use super::{
    END_FILE, End, MARK, PLAN_FILE, Plan, SELFTEST_FILE, comparison_file, description_file,
    report_file,
};

/// Where the exchange is mounted.
const EXCHANGE: &str = "/run/exchange";
/// The network's name inside: one is up at a time.
const NETWORK: &str = "kernel";
/// The kernel's settings.
const SETTINGS: &str = "/proc/sys/net/ipv4";
/// Programs that mounting and networks need.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Does what the plan says, and turns the machine off. `exchange` is the host's directory.
pub fn run(exchange: &Path) -> ! {
    let end = match work(exchange) {
        Ok(end) => end,
        Err(error) => End { code: 1, message: format!("inside the kernel: {error}") },
    };
    // Without it the host says how the console ended.
    let _ = serde_json::to_string(&end)
        .map_err(io::Error::from)
        .and_then(|text| fs::write(Path::new(EXCHANGE).join(END_FILE), text));
    say(&format!("ends with exit code {}: {}", end.code, end.message));
    let error = hawser_sys::process::power_off();
    say(&format!("it cannot be turned off: {error}"));
    std::process::exit(1)
}

/// To the host.
fn say(line: &str) {
    let _ = writeln!(io::stdout().lock(), "{MARK}{line}");
}

fn work(exchange: &Path) -> io::Result<End> {
    mount(exchange)?;
    let exchange = Path::new(EXCHANGE);
    let plan: Plan = serde_json::from_slice(&fs::read(exchange.join(PLAN_FILE))?)?;
    let settings = Path::new(SETTINGS);
    let all = congestion::algorithms()?.available.join(" ");
    fs::write(settings.join("tcp_allowed_congestion_control"), all)?;
    if plan.is_selftest {
        return prove(exchange, &plan);
    }
    for network in 0..plan.networks.len() {
        let end = compare(exchange, &plan, network)?;
        if end.code != 0 {
            return Ok(end);
        }
    }
    Ok(End { code: 0, message: String::new() })
}

fn mount(exchange: &Path) -> io::Result<()> {
    let mount = |kind: &str, options: &str, at: &str| {
        let mut command = Command::new("mount");
        command.env("PATH", PATH).args(["-t", kind, "-o", options, "none", at]);
        succeed(&mut command)
    };
    mount("proc", "rw", "/proc")?;
    mount("tmpfs", "mode=755", "/run")?;
    // As early as possible: later errors can be reported.
    fs::create_dir(EXCHANGE)?;
    mount("hostfs", &exchange.display().to_string(), EXCHANGE)?;
    mount("sysfs", "rw", "/sys")?;
    // Some kernels do it themselves.
    if !fs::read_to_string("/proc/mounts")?.contains(" /dev devtmpfs ") {
        mount("devtmpfs", "rw", "/dev")?;
    }
    fs::create_dir_all("/dev/shm")?;
    for at in ["/dev/shm", "/tmp", "/var/tmp"] {
        mount("tmpfs", "mode=1777", at)?;
    }
    Ok(())
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}: {}", output.status, words.trim())))
}

/// This program, as the host runs it.
fn hawser(plan: &Plan) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env_clear().env("PATH", PATH).env("HAWSER_CC_TOKEN", &plan.token).current_dir("/");
    command.stdin(Stdio::null());
    command
}

/// The laboratory itself, for the account in the plan.
fn prove(exchange: &Path, plan: &Plan) -> io::Result<End> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    say(&format!("selftest, Linux {} in virtual time", kernel.trim()));
    let mut command = hawser(plan);
    command.args(["lab", "selftest", "--json"]);
    command.stdout(File::create(exchange.join(SELFTEST_FILE))?).stderr(Stdio::piped());
    let output = command.spawn()?.wait_with_output()?;
    let findings = fs::read(exchange.join(SELFTEST_FILE))?;
    if let Ok(findings) = serde_json::from_slice::<Findings>(&findings) {
        findings.checks.iter().for_each(|check| say(&check.to_string()));
    }
    let code = output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    let words = String::from_utf8_lossy(&output.stderr);
    let message = words.trim().trim_start_matches("hawser lab: ").to_owned();
    Ok(End { code, message })
}

/// One network.
fn compare(exchange: &Path, plan: &Plan, network: usize) -> io::Result<End> {
    say(&format!(
        "{}: {} s a transfer, seed {}",
        plan.networks[network].name, plan.seconds, plan.seed
    ));
    let mut up = hawser(plan);
    up.args(["lab", "up", "--name", NETWORK, "--seed", &plan.seed.to_string()]);
    up.arg("--");
    succeed(up.arg(exchange.join(description_file(network))))?;
    let far = far_address(plan)?;
    let server = serve(plan, &plan.networks[network].far, &far)?;
    let status = bench(exchange, plan, network, &far);
    succeed(hawser(plan).args(["lab", "down", NETWORK]))?;
    drop(server);
    let (status, last) = status?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    let message = if code == 0 {
        String::new()
    } else {
        format!("{}: {}", plan.networks[network].name, last.trim_start_matches("hawser "))
    };
    Ok(End { code, message })
}

/// As a command inside finds it.
fn far_address(plan: &Plan) -> io::Result<String> {
    let mut command = hawser(plan);
    command.args(["lab", "run", NETWORK, "--", "printenv", "HAWSER_LAB_FAR"]);
    let output = command.output()?;
    let address = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if address.is_empty() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("no far host: {}", words.trim())));
    }
    Ok(format!("{address}:{PORT_DEFAULT}"))
}

/// The far end of the comparison; it is there when this returns, and ended when what this returns is
/// dropped.
fn serve(plan: &Plan, host: &str, far: &str) -> io::Result<Ended> {
    let mut command = hawser(plan);
    command.args(["lab", "run", NETWORK, "--on", host, "--accept-unfaithful", "--"]);
    command.args(["/proc/self/exe", "cc", "serve", "--seconds", "300", "--listen", far]);
    let mut server = Ended(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
    let mut line = String::new();
    if let Some(output) = server.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.starts_with("listening") {
        return Ok(server);
    }
    Err(io::Error::other(format!("`cc serve` has not come up: {line}")))
}

/// Ended with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended with its network.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The near end; its lines are passed on, the last one of them is given.
fn bench(
    exchange: &Path,
    plan: &Plan,
    network: usize,
    far: &str,
) -> io::Result<(ExitStatus, String)> {
    let mut command = hawser(plan);
    command.args(["lab", "run", NETWORK, "--report-json"]).arg(exchange.join(report_file(network)));
    command.args(["--", "/proc/self/exe", "cc", "bench", far, "--only", "down", "--json"]);
    command.args(["--seconds", &plan.seconds.to_string(), "--rounds", &plan.rounds.to_string()]);
    let flows: Vec<String> = plan.flows.iter().map(u32::to_string).collect();
    command.args(["--flows", &flows.join(",")]);
    if !plan.algorithms.is_empty() {
        command.args(["--algorithms", &plan.algorithms.join(",")]);
    }
    command.stdout(File::create(exchange.join(comparison_file(network)))?).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let mut last = String::new();
    if let Some(errors) = child.stderr.take() {
        for line in BufReader::new(errors).lines() {
            last = line?;
            say(&last);
        }
    }
    Ok((child.wait()?, last))
}
