//! Applying and undoing, on a machine in a directory and in network namespaces.

use super::*;

/// A machine in a directory, which is removed with it.
struct Machine(Root);

impl Machine {
    fn new() -> Self {
        let name = format!("hawser-apply-{}", hawser_sys::random::random_u64());
        let root = Root { directory: std::env::temp_dir().join(name), files: Files::Own };
        let machine = Self(root);
        machine.set(DEFAULT, "cubic\n");
        machine.set("net.ipv4.tcp_rmem", "4096\t131072\t6291456\n");
        machine.set("net.ipv4.tcp_wmem", "4096\t16384\t4194304\n");
        machine
    }

    fn set(&self, name: &str, value: &str) {
        let path = self.0.setting(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0.directory);
    }
}

#[test]
fn a_destinations_unit_does_what_was_asked_and_undo_removes_it() {
    let machine = Machine::new();
    let wanted = Destination {
        to: Prefix::parse("2001:db8::/32").unwrap(),
        algorithm: here(),
        initial_window: Some(20),
        persist: true,
    };
    let unit = unit_of(wanted);
    assert_eq!(unit.name, "hawser-congestion-2001-db8---32.service");
    let words = format!("cc apply --to 2001:db8::/32 --algorithm {} --initial-window 20", here());
    assert_eq!(unit.arguments.join(" "), words);
    let directory = &machine.0.directory;
    unit.enable(directory, "/usr/bin/hawser".as_ref()).unwrap();
    let path = unit.path(directory);
    let line = format!("removed: {}", path.display());
    let dry = undo(&machine.0, true).unwrap();
    assert!(dry.contains(&format!("to be {line}")), "{dry:?}");
    assert!(path.exists());
    // A container's or test's network namespace has the same /etc.
    let elsewhere = Root { files: Files::Machines, ..machine.0.clone() };
    let stays = undo(&elsewhere, false).unwrap();
    assert!(stays.iter().any(|line| line.contains("stays")) && path.exists(), "{stays:?}");
    assert!(undo(&machine.0, false).unwrap().contains(&line));
    assert!(!path.exists());
    let refused = destination(wanted, &elsewhere, true).unwrap_err();
    assert!(matches!(refused, ApplyError::NotMachines), "{refused}");
    let refused = system(&System { persist: true, ..System::default() }, &elsewhere, true);
    assert!(matches!(refused, Err(ApplyError::NotMachines)), "{refused:?}");
}

/// An algorithm that this kernel allows to all users.
fn here() -> Algorithm {
    let found = hawser_sys::congestion::algorithms().unwrap();
    Algorithm::new(&found.default).unwrap()
}

fn wanted() -> System {
    System { algorithm: Some(here()), buffer_bytes: Some(32 << 20), persist: true }
}

#[test]
fn a_dry_run_says_it_and_writes_nothing() {
    let machine = Machine::new();
    machine.set(DEFAULT, "other\n");
    let lines = system(&wanted(), &machine.0, true).unwrap();
    let text = lines.join("\n");
    assert!(text.contains(&format!("{DEFAULT}: other -> {}", here())), "{text}");
    assert!(
        text.contains("net.ipv4.tcp_wmem: 4096 16384 4194304 -> 4096 16384 33554432"),
        "{text}"
    );
    assert!(text.contains(SYSCTL_FILE) && text.contains(MODULES_FILE), "{text}");
    assert_eq!(machine.0.read(DEFAULT).unwrap(), "other");
    assert!(!machine.0.at("/etc").exists() && !machine.0.at("/run").exists());
}

#[test]
fn what_is_applied_is_undone_and_what_others_have_changed_since_stays() {
    let machine = Machine::new();
    machine.set(DEFAULT, "other\n");
    system(&wanted(), &machine.0, false).unwrap();
    assert_eq!(machine.0.read(DEFAULT).unwrap(), here().as_str());
    let text = fs::read_to_string(machine.0.at(SYSCTL_FILE)).unwrap();
    assert!(text.contains("net.ipv4.tcp_rmem = 4096 131072 33554432\n"), "{text}");
    machine.set("net.ipv4.tcp_rmem", "1 2 3\n");
    // A second time changes nothing about what was there first.
    system(&wanted(), &machine.0, false).unwrap();
    machine.set("net.ipv4.tcp_rmem", "1 2 3\n");
    let lines = undo(&machine.0, false).unwrap().join("\n");
    assert_eq!(machine.0.read(DEFAULT).unwrap(), "other", "{lines}");
    assert_eq!(machine.0.read("net.ipv4.tcp_wmem").unwrap(), "4096 16384 4194304");
    assert_eq!(machine.0.read("net.ipv4.tcp_rmem").unwrap(), "1 2 3", "{lines}");
    assert!(!machine.0.at(SYSCTL_FILE).exists() && !machine.0.at(MODULES_FILE).exists());
    assert_eq!(undo(&machine.0, true).unwrap(), ["there is nothing to undo"]);
}

/// `undo` put back what there was before the first call.
#[test]
fn a_foreign_setting_between_two_calls_is_restored() {
    let machine = Machine::new();
    let buffers = |bytes| System { buffer_bytes: Some(bytes), ..System::default() };
    system(&buffers(32 << 20), &machine.0, false).unwrap();
    machine.set("net.ipv4.tcp_rmem", "4096 131072 8000000\n");
    system(&buffers(64 << 20), &machine.0, false).unwrap();
    system(&buffers(16 << 20), &machine.0, false).unwrap();
    undo(&machine.0, false).unwrap();
    assert_eq!(machine.0.read("net.ipv4.tcp_rmem").unwrap(), "4096 131072 8000000");
    assert_eq!(machine.0.read("net.ipv4.tcp_wmem").unwrap(), "4096 16384 4194304");
}

#[test]
fn what_is_to_last_is_what_all_calls_have_asked_for() {
    let machine = Machine::new();
    let first = System { buffer_bytes: None, ..wanted() };
    system(&first, &machine.0, false).unwrap();
    let second = System { algorithm: None, ..wanted() };
    system(&second, &machine.0, false).unwrap();
    let third = System { buffer_bytes: Some(64 << 20), ..second };
    system(&third, &machine.0, false).unwrap();
    let text = fs::read_to_string(machine.0.at(SYSCTL_FILE)).unwrap();
    let settings = format!(
        "{DEFAULT} = {}\nnet.ipv4.tcp_rmem = 4096 131072 67108864\n\
         net.ipv4.tcp_wmem = 4096 16384 67108864\n",
        here()
    );
    assert_eq!(text, format!("{MARK}\n{settings}"));
    let module = fs::read_to_string(machine.0.at(MODULES_FILE)).unwrap();
    assert_eq!(module, format!("{MARK}\ntcp_{}\n", here()));
}

#[test]
fn a_prefix_of_which_parts_go_elsewhere_is_refused_and_they_are_named() {
    let made = std::thread::spawn(|| {
        if let Err(error) = hawser_sys::namespace::unshare_network() {
            eprintln!("SKIPPED: no network namespace: {error}");
            return;
        }
        let own = hawser_sys::namespace::own_network().unwrap();
        let mut routing = hawser_sys::rtnetlink::Routing::open().unwrap();
        routing.add_pair(c"wan", c"lan", &own).unwrap();
        let main = hawser_sys::rtnetlink::MAIN_TABLE;
        for (name, to, bits) in [("wan", [0; 4], 0), ("lan", [10, 78, 0, 0], 24)] {
            let interface = routing.interface(name).unwrap();
            routing.set_up(interface).unwrap();
            routing.add_route((to.into(), bits), interface, None, main).unwrap();
        }
        let apply = |to: &str| {
            let to = Prefix::parse(to).unwrap();
            let wanted =
                Destination { to, algorithm: here(), initial_window: None, persist: false };
            destination(wanted, &Root::default(), true)
        };
        // The first address of the one is in the part, that of the other is not.
        for to in ["10.78.0.0/16", "10.0.0.0/8"] {
            let error = apply(to).unwrap_err();
            assert_eq!(error.exit_code(), 68);
            assert!(error.to_string().contains("10.78.0.0/24 dev lan"), "{error}");
        }
        for (to, device) in [("10.78.0.0/24", "lan"), ("10.78.0.9", "lan"), ("10.79.0.0/16", "wan")]
        {
            let lines = apply(to).unwrap();
            assert!(lines[0].contains(&format!("dev {device} ")), "{lines:?}");
        }
    });
    made.join().unwrap();
}

/// In a network namespace the kernel refused the algorithm; `undo` then reported a foreign change
/// of what was never changed.
#[test]
fn a_setting_that_is_refused_leaves_nothing_to_undo() {
    let machine = Machine::new();
    machine.set(DEFAULT, "other\n");
    // The second is a directory.
    let settings = [
        Setting { name: DEFAULT, set: "cubic", before: "other".to_owned() },
        Setting { name: "net.ipv4", set: "1 2 3", before: String::new() },
    ];
    assert!(write_all(&settings, &machine.0).is_err());
    assert_eq!(machine.0.read(DEFAULT).unwrap(), "other");
    let change = Changed { name: DEFAULT.to_owned(), before: "other".into(), set: "cubic".into() };
    machine.0.save(&Record::default().with(change)).unwrap();
    let lines = undo(&machine.0, false).unwrap();
    assert_eq!(lines, ["there is nothing to undo"]);
    assert!(!machine.0.record().unwrap().exists());
}

#[test]
fn a_foreign_file_is_left_alone() {
    let machine = Machine::new();
    let path = machine.0.at(SYSCTL_FILE);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "net.ipv4.tcp_congestion_control = reno\n").unwrap();
    let error = system(&wanted(), &machine.0, false).unwrap_err();
    assert_eq!(error.exit_code(), 73, "{error}");
    undo(&machine.0, false).unwrap();
    assert!(path.exists());
}

#[test]
fn an_algorithm_that_is_not_there_changes_nothing() {
    let machine = Machine::new();
    let wanted = System { algorithm: Algorithm::new("nosuchthing"), ..System::default() };
    let error = system(&wanted, &machine.0, false).unwrap_err();
    assert!(matches!(error, ApplyError::Algorithm(_)), "{error}");
    assert_eq!(machine.0.read(DEFAULT).unwrap(), "cubic");
    let to = Prefix::parse("127.0.0.1").unwrap();
    let wanted = Destination { to, algorithm: here(), initial_window: None, persist: false };
    let error = destination(wanted, &Root::default(), true).unwrap_err();
    assert_eq!(error.exit_code(), 68, "{error}");
}
