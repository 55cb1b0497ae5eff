//! Servers that are measured beside each other: our target under any policy, SPDK's, nbdkit and qemu-nbd, each in a
//! process of its own on memory, pinned to one processor.

use super::block::Target;
use super::nvme::Address;
use anyhow::{Context, bail};
use blockswitch::Policy;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wire::nvme::proto::BLOCK_SHIFT;

/// A server that does not answer this long after its start is given up.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The volume on flash: small, since it is filled at the speed of the flash.
const FLASH: &str = "vssd:mem,size=32MiB,timing=p-ssd";

/// Memory that SPDK's target takes for itself, in MiB.
const SPDK_OWN_MIB: u64 = 768;

/// Protocol of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// NVMe/TCP.
    Nvme,
    /// NBD.
    Nbd,
}

/// A system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// `switchyard serve`.
    Ours(Policy, Protocol),
    /// SPDK's NVMe/TCP target, `nvmf_tgt`, on its malloc device: polling, in ordinary pages.
    Spdk,
    /// nbdkit with its memory plugin.
    Nbdkit,
    /// qemu-nbd on a file in memory.
    QemuNbd,
}

impl System {
    /// Name in reports.
    pub fn name(self) -> String {
        match self {
            Self::Ours(policy, Protocol::Nvme) => format!("{policy} nvme"),
            Self::Ours(policy, Protocol::Nbd) => format!("{policy} nbd"),
            Self::Spdk => "SPDK nvmf_tgt".into(),
            Self::Nbdkit => "nbdkit memory".into(),
            Self::QemuNbd => "qemu-nbd tmpfs".into(),
        }
    }

    /// True if it can be run here.
    pub fn is_there(self) -> bool {
        let program = match self {
            Self::Ours(..) => return true,
            Self::Spdk => "nvmf_tgt",
            Self::Nbdkit => "nbdkit",
            Self::QemuNbd => "qemu-nbd",
        };
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

/// A running server; it ends when this is dropped.
pub struct Server {
    child: Child,
    /// Where its volume is.
    pub uri: String,
    /// The place of its volume for clients of our target's other protocol.
    pub other_uri: Option<String>,
    /// Place of its volume on flash, if any.
    pub flash_uri: Option<String>,
    /// Files to delete.
    files: Vec<PathBuf>,
}

impl Server {
    /// Starts a system on `bytes` of memory, ours with a volume on flash beside it if wanted, and waits until it answers.
    pub fn start(system: System, bytes: u64, flash: bool, cpu: usize) -> anyhow::Result<Self> {
        match system {
            System::Ours(policy, protocol) => Self::ours(policy, protocol, bytes, flash, cpu, &[]),
            System::Spdk => {
                let port = free_port()?;
                let path = |what: &str| {
                    std::env::temp_dir()
                        .join(format!("switchyard-bench-{}-{port}.{what}", std::process::id()))
                };
                let (config, control) = (path("json"), path("sock"));
                let uri = format!("nvme://127.0.0.1:{port}/disk");
                let nqn = Address::parse(&uri).expect("it is one").nqn;
                std::fs::write(&config, spdk_config(bytes, port, &nqn).to_string())
                    .with_context(|| format!("cannot write {}", config.display()))?;
                let mut command = Command::new("nvmf_tgt");
                command.args(["-m", &format!("[{cpu}]"), "--no-huge", "--no-pci", "-s"]);
                command.arg((SPDK_OWN_MIB + (bytes >> 20)).to_string());
                command.arg("-r").arg(&control).arg("-c").arg(&config);
                command.stderr(Stdio::null());
                Self::foreign(command, uri, vec![config, control, path("sock.lock")])
            }
            System::Nbdkit => {
                let port = free_port()?;
                let mut command = pinned("nbdkit", cpu);
                command.args([
                    "-f",
                    "-i",
                    "127.0.0.1",
                    "-p",
                    &port.to_string(),
                    "memory",
                    &bytes.to_string(),
                ]);
                Self::foreign(command, nbd_uri(port), Vec::new())
            }
            System::QemuNbd => {
                let port = free_port()?;
                let path = PathBuf::from(format!("/dev/shm/switchyard-bench-{}-{port}", std::process::id()));
                std::fs::File::create(&path)
                    .and_then(|file| file.set_len(bytes))
                    .with_context(|| format!("cannot create {}", path.display()))?;
                let mut command = pinned("qemu-nbd", cpu);
                command.args([
                    "-t",
                    "-f",
                    "raw",
                    "-b",
                    "127.0.0.1",
                    "--shared=64",
                    "-p",
                    &port.to_string(),
                ]);
                command.arg(&path);
                Self::foreign(command, nbd_uri(port), vec![path])
            }
        }
    }

    /// Our target on `bytes` of memory, for so many connections.
    pub fn crowded(bytes: u64, cpu: usize, connections: usize) -> anyhow::Result<Self> {
        let more = ["--connections".into(), connections.to_string()];
        Self::ours(Policy::Switchyard, Protocol::Nbd, bytes, false, cpu, &more)
    }

    fn ours(
        policy: Policy,
        protocol: Protocol,
        bytes: u64,
        flash: bool,
        cpu: usize,
        more: &[String],
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args([
            "serve",
            "--name",
            "disk",
            "--json",
            "--nbd",
            "127.0.0.1:0",
            "--nvme",
            "127.0.0.1:0",
        ]);
        command.args(["--media", &format!("mem:{bytes}"), "--cores", &cpu.to_string()]);
        command.args(["--policy", policy.name()]).args(more);
        if flash {
            command.args(["--media", FLASH, "--name", "flash"]);
        }
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `switchyard serve`")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line)?;
        let ready: serde_json::Value = serde_json::from_str(&line)
            .context("`switchyard serve` did not become ready: see its message above")?;
        let uri_of = |protocol: Protocol, index: usize, name: &str| {
            let volume = &ready["volumes"][index];
            match protocol {
                Protocol::Nbd => volume["nbd"][0].as_str().map(str::to_owned),
                Protocol::Nvme => volume["nvme"][0]
                    .as_str()
                    .map(|address| format!("nvme://{address}/{name}")),
            }
        };
        let other = match protocol {
            Protocol::Nbd => Protocol::Nvme,
            Protocol::Nvme => Protocol::Nbd,
        };
        Ok(Self {
            child,
            uri: uri_of(protocol, 0, "disk").context("`switchyard serve` named no address")?,
            other_uri: uri_of(other, 0, "disk"),
            flash_uri: uri_of(protocol, 1, "flash"),
            files: Vec::new(),
        })
    }

    fn foreign(mut command: Command, uri: String, files: Vec<PathBuf>) -> anyhow::Result<Self> {
        let child = command
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Self {
            child,
            uri,
            other_uri: None,
            flash_uri: None,
            files,
        };
        let start = Instant::now();
        while Target::open(&server.uri, None).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("{command:?} does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for path in &self.files {
            if let Err(error) = std::fs::remove_file(path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                eprintln!("cannot remove {}: {error}", path.display());
            }
        }
    }
}

/// A command whose process runs on one processor only.
fn pinned(program: &str, cpu: usize) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu.to_string(), program]);
    command
}

fn nbd_uri(port: u16) -> String {
    format!("nbd://127.0.0.1:{port}/")
}

/// SPDK's configuration: one volume in memory, in logical blocks of our client's size, behind one listener.
fn spdk_config(bytes: u64, port: u16, nqn: &str) -> serde_json::Value {
    let call = |method: &str, params: serde_json::Value| json!({"method": method, "params": params});
    let address =
        json!({"trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string()});
    let disk = json!({"name": "disk", "num_blocks": bytes >> BLOCK_SHIFT, "block_size": 1 << BLOCK_SHIFT});
    json!({"subsystems": [
        {"subsystem": "bdev", "config": [call("bdev_malloc_create", disk)]},
        {"subsystem": "nvmf", "config": [
            call("nvmf_create_transport", json!({"trtype": "TCP"})),
            call("nvmf_create_subsystem", json!({"nqn": nqn, "allow_any_host": true, "serial_number": "1"})),
            call("nvmf_subsystem_add_ns", json!({"nqn": nqn, "namespace": {"bdev_name": "disk"}})),
            call("nvmf_subsystem_add_listener", json!({"nqn": nqn, "listen_address": address})),
        ]},
    ]})
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
