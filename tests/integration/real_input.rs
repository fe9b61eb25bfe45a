//! What people do with a file system: unpack sources, build, use git, remove it all. The same on the
//! kernel's ext4 must leave the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::image::{dumpe2fs, field};
use crate::support::{needs_root, ok, run, Image, Mounted, Scope, Snapshot};

const LIMIT: Duration = Duration::from_secs(600);
const BYTES: u64 = 1 << 30;

/// Sources of real projects: the crates that this one was built from.
fn sources() -> PathBuf {
    let cargo = std::env::var_os("CARGO_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cargo"), PathBuf::from);
    let registries = fs::read_dir(cargo.join("registry/src")).expect("cargo's sources");
    let mut sizes: Vec<_> = registries
        .map(|entry| entry.expect("readdir").path())
        .map(|path| (fs::read_dir(&path).map_or(0, Iterator::count), path))
        .collect();
    sizes.sort();
    sizes.pop().expect("a registry with sources").1
}

fn shell(directory: &Path, script: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).args(arguments);
    // Nothing of the machine's or the user's own may show in the result.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("LC_ALL", "C");
    ok(command.current_dir(directory), LIMIT)
}

/// Forty C files, a library of them and a program, by make.
const BUILD: &str = r#"
    mkdir build; cd build
    for n in $(seq 40); do
        printf 'int f%s(int x) { return x * %s + 1; }\n' $n $n > f$n.c
        printf 'int f%s(int);\n' $n >> all.h
        printf '    sum += f%s(sum);\n' $n >> calls
    done
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) {\n    unsigned sum = 1;\n' > main.c
    cat calls >> main.c
    printf '    printf("%%u\\n", sum);\n    return 0;\n}\n' >> main.c
    cat > Makefile <<'MAKE'
OBJECTS = $(patsubst %.c,%.o,$(wildcard f*.c))
program: main.o libf.a
	$(CC) -o $@ $^
libf.a: $(OBJECTS)
	ar rcD $@ $(sort $^)
%.o: %.c
	$(CC) -O1 -MMD -c -o $@ $<
MAKE
    make -s -j4
    ./program
"#;

const GIT: &str = r#"
    git init -q -b main .
    git config user.name Tester; git config user.email tester@example.invalid
    git config gc.auto 0; git config pack.threads 1
    export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
    git add -A; git commit -q -m first
    for n in 1 2 3; do
        find . -path ./.git -prune -o -name '*.rs' -print | sort | head -n $((n * 20)) |
            while read -r f; do echo "// $n" >> "$f"; done
        git commit -q -a -m "change $n"
    done
    git checkout -q -b side HEAD~2; git rm -q -r --cached build; git commit -q -m side
    git checkout -q -f main
    git gc -q --prune=now
    git fsck --full --strict >&2
    git status --porcelain
    git rev-parse main side
"#;

struct Result {
    program: String,
    commits: String,
    tree: Snapshot,
    mark: String,
}

fn session(mounted: &Mounted) -> Result {
    let work = mounted.join("work");
    fs::create_dir(&work).expect("mkdir");
    shell(&work, r#"tar -C "$1" -cf - . | tar -xf -"#, &[&sources()]);
    let program = shell(&work, BUILD, &[]);
    let tree = Snapshot::take(&work);
    let commits = shell(&work, GIT, &[]);
    // Left halfway: what is removed must be gone and what is kept must be whole.
    let mark =
        shell(&work, "rm -rf .git/objects; cp -a build copy; ln build/program linked; find . | wc -l", &[]);
    Result { program, commits, tree, mark }
}

/// Free blocks and inodes, which must be what they were once everything is removed.
fn free_space(image: &Image) -> (String, String) {
    let header = dumpe2fs(&image.path());
    (field(&header, "Free blocks"), field(&header, "Free inodes"))
}

fn compare_with_kernel(profile: &'static str) {
    let image = Image::formatted(BYTES, profile, &[]);
    let fresh = free_space(&image);
    let mounted = Mounted::new(&image, "noatime");
    let ours = session(&mounted);
    mounted.unmount();
    image.assert_clean();

    let reference = Image::mke2fs(BYTES, "ext4", &[]);
    let mounted = Mounted::kernel(&reference, "noatime");
    let theirs = session(&mounted);
    mounted.unmount();

    assert!(ours.tree.len() > 2000, "only {} files", ours.tree.len());
    ours.tree.assert_same(&theirs.tree, Scope::Portable, "sources and build");
    assert_eq!(ours.program, theirs.program, "what the program prints");
    assert_eq!(ours.commits, theirs.commits, "what git made");
    assert_eq!(ours.mark, theirs.mark, "files left");

    let mounted = Mounted::new(&image, "noatime");
    let output = run(Command::new("rm").arg("-rf").arg(mounted.join("work")), LIMIT);
    assert!(output.status.success(), "rm -rf: {}", output.text());
    mounted.unmount();
    image.assert_clean();
    assert_eq!(free_space(&image), fresh, "free space after rm -rf");
}

#[test]
fn sources_build_git_on_the_journalfs_profile() {
    needs_root!();
    compare_with_kernel("journalfs");
}

#[test]
fn sources_build_git_on_the_ext3_profile() {
    needs_root!();
    compare_with_kernel("ext3");
}
