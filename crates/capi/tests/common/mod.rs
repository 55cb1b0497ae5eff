#![allow(dead_code, reason = "each test uses a part")]

//! Parts that the tests of the bindings share: an installation of their own, and programs that use it.

use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The libraries that cargo built for this test lie beside it.
pub fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    test.parent().expect("a file is in a directory").to_path_buf()
}

pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a command that succeeds; what it says on standard output.
pub fn succeeds(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{complained}");
    said
}

/// The library as `make install` leaves it, in a directory that ends with the test.
pub struct Installed {
    pub directory: TempDir,
}

impl Installed {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        succeeds(
            Command::new(here("install.sh"))
                .arg(libraries())
                .env_clear()
                .env("PATH", std::env::var_os("PATH").unwrap_or_default())
                .env("PREFIX", directory.path().join("prefix"))
                .env("PYTHONDIR", directory.path().join("packages")),
        );
        Self { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn library(&self) -> PathBuf {
        self.path("prefix/lib")
    }

    /// Compiles a program as the pkg-config file says.
    pub fn compile(&self, compiler: &str, flags: &[&str], source: &str) -> PathBuf {
        let stem = Path::new(source).file_stem().expect("a file has a name");
        let name = format!("{compiler}-{}-{}", stem.to_string_lossy(), flags.len());
        let program = self.path(&name);
        let config = succeeds(
            Command::new("pkg-config")
                .args(["--cflags", "--libs", "switchyard_store"])
                .env("PKG_CONFIG_PATH", self.library().join("pkgconfig")),
        );
        succeeds(
            Command::new(compiler)
                .args(flags)
                .args(["-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread", "-I"])
                .arg(here("tests/c"))
                .arg(here(source))
                .args(config.split_whitespace())
                .arg("-o")
                .arg(&program),
        );
        program
    }

    /// Runs a program; `areas` are the names of files that are not there yet.
    pub fn run(&self, program: &Path, areas: &[&str]) -> String {
        let name = program.file_name().expect("a file has a name").to_string_lossy();
        let path = |area: &&str| self.path(&format!("{name}-{area}"));
        succeeds(
            Command::new(program)
                .args(areas.iter().map(path))
                .env("LD_LIBRARY_PATH", self.library()),
        )
    }

    /// Runs a Python program with the installed package.
    pub fn python(&self, source: &str, areas: &[&str]) -> String {
        let stem = source.replace('/', "-");
        let path = |area: &&str| self.path(&format!("{stem}-{area}"));
        succeeds(
            Command::new("python3")
                .args(["-B", "-W", "error"])
                .arg(here(source))
                .args(areas.iter().map(path))
                .env("PYTHONPATH", self.path("packages"))
                .env("LD_LIBRARY_PATH", self.library())
                .env_remove("SWITCHYARD_STORE"),
        )
    }
}
