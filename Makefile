# journalfs: `make demo` shows it, `make test` runs every test. Both install what is missing.
#
#   build     target/release/{journalfs,mount.journalfs,mkfs.journalfs,fsck.journalfs}
#   install   where mount(8), mkfs(8) and fsck(8) look (PREFIX, SBINDIR, DESTDIR)
#   deps      packages and pinned tools that the demo and the tests need
#   check     formatting, lints, documentation
#   unit      unit tests; integration: tests that mount images (as root)
#   crash     a million states that a power cut can leave
#   streams   the same of what fs_mark, git and pjdfstest write through a mount, and of fuse2fs
#   faults    deliberate faults, each of which the crash tests must catch
#   fuzz      hostile images, journals and records, each for FUZZ_SECONDS (3600); needs the nightly compiler
#   models    the concurrent parts under a model checker, in thousands of interleavings
#   kill      50 rounds of kill -9 under load
#   floor     performance against the kernel's ext3, on one CPU
#   bench     files/s beside the kernel's file systems on four classes of devices, into bench/results; bench-quick: a part of it
#   suites    the long runs: kill, a million fsx operations, much damage, floor

CARGO ?= cargo
PREFIX ?= /usr
# mount(8), mkfs(8) and fsck(8) look in /sbin whatever the prefix is.
SBINDIR ?= /sbin
DESTDIR ?=

RELEASE = target/release
TEST_ARGUMENTS ?=
BENCH_ARGUMENTS ?=

.PHONY: build install uninstall deps check unit integration test demo crash streams faults fuzz models kill floor bench bench-quick suites clean

build:
	$(CARGO) build --release --workspace
	ln -sf journalfs $(RELEASE)/mount.journalfs
	ln -sf mkfs-journalfs $(RELEASE)/mkfs.journalfs
	ln -sf fsck-journalfs $(RELEASE)/fsck.journalfs

# umount.fuse.journalfs makes a plain umount(8) wait until the daemon has written everything.
LINKS = mount.journalfs mount.fuse.journalfs umount.journalfs umount.fuse.journalfs

install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(SBINDIR)
	install -m 755 $(RELEASE)/journalfs $(DESTDIR)$(PREFIX)/bin/journalfs
	install -m 755 $(RELEASE)/mkfs-journalfs $(DESTDIR)$(SBINDIR)/mkfs.journalfs
	install -m 755 $(RELEASE)/fsck-journalfs $(DESTDIR)$(SBINDIR)/fsck.journalfs
	for link in $(LINKS); do ln -sf $(PREFIX)/bin/journalfs $(DESTDIR)$(SBINDIR)/$$link; done

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/journalfs
	for name in $(LINKS) mkfs.journalfs fsck.journalfs; do rm -f $(DESTDIR)$(SBINDIR)/$$name; done

deps:
	scripts/install-deps.sh

check:
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	scripts/check-deps.sh

unit:
	$(CARGO) test --workspace --lib --bins
	$(CARGO) test --workspace --doc
	JOURNALFS_MODEL_RUNS=100 $(CARGO) test --features models --test models

# Every test outside src/. Those that mount need root; without it they say "skipped: needs root".
integration: build
	$(CARGO) test --workspace --test '*' --no-run
	scripts/as-root.sh env JOURNALFS_BIN_DIR="$(CURDIR)/$(RELEASE)" \
		$(CARGO) test --workspace --test '*' $(TEST_ARGUMENTS)

test: deps check unit integration

demo: deps build
	scripts/demo.sh

kill: build
	KILL_ROUNDS=50 $(MAKE) integration TEST_ARGUMENTS="--test integration -- --nocapture kill::"

# A million states that a power cut can leave; hours on a small machine. `make test` checks some thousand.
crash:
	scripts/as-root.sh env JOURNALFS_CRASH_STATES=$${JOURNALFS_CRASH_STATES:-1000000} \
		$(CARGO) test --release --test crash -- --nocapture
	$(MAKE) streams

# States of the write streams of whole programs on a real mount, and of fuse2fs on the same load.
streams: build
	scripts/as-root.sh env JOURNALFS_BIN_DIR="$(CURDIR)/$(RELEASE)" \
		JOURNALFS_STREAM_STATES=$${JOURNALFS_STREAM_STATES:-2000} \
		$(CARGO) test --release --test streams -- --nocapture --test-threads 1

# The crash tests can fail: each deliberate fault is caught.
faults:
	scripts/as-root.sh $(CARGO) test --release --features fault-injection --test crash -- --nocapture

# A slice of it is in `make test`.
models:
	JOURNALFS_MODEL_RUNS=$${JOURNALFS_MODEL_RUNS:-5000} $(CARGO) test --features models --test models

fuzz:
	scripts/as-root.sh fuzz/run.sh

bench: deps build
	scripts/as-root.sh $(RELEASE)/journalfs-bench run $(BENCH_ARGUMENTS)

bench-quick: deps build
	scripts/as-root.sh $(RELEASE)/journalfs-bench run --rounds 3 --scale 50 --classes array --threads 1,4,20 \
		--contenders adaptive,none,jbd2,ext3,ext4 --results target/bench-quick $(BENCH_ARGUMENTS)

floor: build
	scripts/as-root.sh scripts/floor.sh

suites: deps crash faults kill floor
	FSX_OPERATIONS=1000000 $(MAKE) integration TEST_ARGUMENTS="--test integration -- --nocapture fsx:: pjdfstest::"
	HOSTILE_ROUNDS=2000 $(MAKE) integration TEST_ARGUMENTS="--test integration -- --nocapture hostile::"

clean:
	$(CARGO) clean
