"""A node as people run it: starts and stops, its socket, what it shows, and what a crash leaves."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
import unittest

from certificates import Authority
from harness import BIN, ROOT, SMALL_KV, cached, free_port, main, reusable_tokens, write_trace
from with_node import CLIENT, WithNode


class NodeTest(WithNode):
    def test_starts_stops_and_removes_its_socket(self):
        node, path = self.start_node()
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        node.terminate()
        self.assertEqual(node.wait(20), 0, node.text())
        self.assertFalse(path.exists())
        self.assert_all_gone(node)

    def test_a_path_that_is_served_is_refused_and_one_that_a_crash_left_is_not(self):
        node, path = self.start_node()
        self.refuse(["--memory", "1MiB", "--socket", path], "--socket")
        node.kill()
        self.assertTrue(path.exists())
        again, _ = self.start_node(name="again")
        again.terminate()
        self.assertEqual(again.wait(20), 0, again.text())

    def test_bad_flags_are_one_sentence(self):
        path = self.folder / "socket"
        self.refuse(["--socket", path], "--memory")
        self.refuse(["--memory", "64MiB"], "--socket")
        self.refuse(["--memory", "much", "--socket", path], "much")
        self.refuse(["--memory", "8EiB", "--socket", path], "8EiB")
        self.refuse(["--memory", "0", "--socket", path], "--memory", "holds no page")
        self.refuse(["--memory", "1", "--socket", path], "--memory", "holds no page")
        self.refuse(["--memory", "1MiB", "--socket", self.folder / "no" / "folder"], "--socket")
        self.refuse(["--memory", "1MiB", "--socket", path, "--index", "127.0.0.1:1", "--listen-host", "0.0.0.0"],
                    "--listen-host", "--insecure")
        self.assertFalse(path.exists())

    def test_strangers_at_the_socket_do_not_disturb(self):
        port = free_port()
        node, path = self.start_node("--metrics-port", port)
        silent = []
        for i in range(300):
            one = socket.socket(socket.AF_UNIX)
            one.connect(str(path))
            one.send(os.urandom(64) if i % 2 == 0 else b"\0" * 8)
            silent.append(one)
        self.assertEqual(self.metrics(port)["hicache_up"], 1)
        for one in silent:
            one.close()
        node.terminate()
        self.assertEqual(node.wait(20), 0, node.text())

    def test_what_a_killed_client_was_writing_is_free_again(self):
        _, path = self.start_node()
        client = self.start_client(path, "reserve")
        client.wait_for("reserved")
        self.assertGreater(self.status(path)["reserved_bytes"], 0)
        client.kill()
        self.wait_until(lambda: self.status(path)["reserved_bytes"] == 0, "the node still keeps what it reserved")
        self.store(path)

    def test_clients_that_flood_do_not_keep_others_out(self):
        node, path = self.start_node()
        floods = [self.start_client(path, "flood", f"flood{i}") for i in range(2)]
        for flood in floods:
            flood.wait_for("flooding")
        self.store(path)
        for flood in floods:
            self.assertIsNone(flood.process.poll(), flood.text())
            flood.terminate()
            self.assertEqual(flood.wait(30), 0, flood.text())
        self.assertIsNone(node.process.poll(), node.text())

    def test_a_thousand_clients(self):
        _, path = self.start_node()
        crowds = []
        for i in range(4):
            crowds.append(self.start_client(path, "crowd", f"crowd{i}"))
            crowds[i].wait_for("all are served", seconds=120)
        one_more = self.start_client(path, "store")
        self.assertNotEqual(one_more.wait(60), 0, one_more.text())
        self.assertIn("too many clients", one_more.text())
        seen = self.status(path)
        self.assertEqual(len(seen["clients"]), 1024)
        self.assertEqual(seen["refused"], 1)
        for crowd in crowds:
            crowd.kill()
        self.wait_until(lambda: not self.status(path)["clients"], "the node still has clients")
        self.store(path)

    def test_one_process_does_not_take_the_places_of_all_others(self):
        node, path = self.start_node()
        self.start_client(path, "crowd").wait_for("all are served", seconds=120)
        self.store(path)
        self.assertIn("has 256 connections already", node.text())

    def knock_as(self, user, path):
        """Whether it is let in: 0 if not."""
        try:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(30)
                one.connect(str(path))
                return len(one.recv(1))
        except OSError:
            return 2

    @unittest.skipIf(os.geteuid() != 0, "only root can become another user")
    def test_other_users_are_refused_even_if_they_can_open_the_socket(self):
        node, path = self.start_node()
        os.chmod(self.folder, 0o755)
        os.chmod(path, 0o666)
        stranger = os.fork()  # Another user may not be able to run this Python.
        if stranger == 0:
            os._exit(self.knock_as(65534, path))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]), 0)
        self.wait_until(lambda: "it is of user 65534" in node.text(), node.text())
        self.store(path)

    @unittest.skipIf(os.geteuid() != 0, "only root can become another user")
    def test_processes_of_its_group_are_clients_whatever_their_user(self):
        group, user = 64321, 65534
        node, path = self.start_node("--group", group)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o660)
        self.assertEqual(os.stat(path).st_gid, group)
        os.chmod(self.folder, 0o755)
        # Another user may not be able to reach the folder of the build.
        program = shutil.copy(CLIENT, self.folder / "client")

        def code_of(groups, name):
            client = self.start(["setpriv", f"--reuid={user}", f"--regid={user}", f"--groups={groups}", program, "--socket", path, "store"], name)
            return client.wait(60)

        self.assertEqual(code_of(f"1,{group}", "member"), 0)
        self.assertNotEqual(code_of("1", "outside"), 0)
        os.chmod(path, 0o666)
        self.assertNotEqual(code_of("1", "stranger"), 0)
        self.wait_until(lambda: f"it is of user {user}" in node.text(), node.text())
        self.store(path)

    def test_a_group_that_is_none_is_one_sentence(self):
        self.refuse(["--memory", "1MiB", "--socket", self.folder / "socket", "--group", "no such group"], "--group", "no such group")

    def test_shows_itself_to_prometheus_and_opens_no_other_port(self):
        port = free_port()
        node, _ = self.start_node("--metrics-port", port)
        seen = self.metrics(port)
        self.assertEqual(seen["hicache_up"], 1)
        self.assertEqual(seen["hicache_node_capacity_bytes"], 64 << 20)
        self.assertEqual(seen["hicache_node_clients"], 0)
        inodes = {os.readlink(entry) for entry in pathlib.Path(f"/proc/{node.process.pid}/fd").iterdir() if entry.is_symlink()}
        listening = [line.split() for line in pathlib.Path(f"/proc/{node.process.pid}/net/tcp").read_text().splitlines()[1:]]
        own = {int(row[1].split(":")[1], 16) for row in listening if row[3] == "0A" and f"socket:[{row[9]}]" in inodes}
        self.assertEqual(own, {port})

    def test_shows_itself_to_people(self):
        _, path = self.start_node()
        status = [BIN / "hicachectl", "node", "status", "--socket"]
        shown = subprocess.run([*status, path, "--json"], capture_output=True, text=True, timeout=60)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(json.loads(shown.stdout)["capacity_bytes"], 64 << 20)
        self.assertIn("64.0 MiB", subprocess.run([*status, path], capture_output=True, text=True, timeout=60).stdout)
        nobody = subprocess.run([*status, self.folder / "nobody"], capture_output=True, text=True, timeout=60)
        self.assertEqual(nobody.returncode, 2)
        self.assertIn("nobody", nobody.stderr)

    def test_top_shows_what_clients_do_until_it_is_stopped(self):
        for end in (signal.SIGINT, signal.SIGTERM):
            node, path = self.start_node(name=f"node{end}")
            top = self.start([BIN / "hicachectl", "node", "top", "--interval", "200ms", "--socket", path], f"top{end}")
            top.wait_for(r"0 clients write 0 B")
            client = self.start_client(path, "reserve", f"client{end}")
            top.wait_for(r"1 clients write 4\d\d\.\d KiB")
            client.kill()
            self.store(path)
            top.wait_for(r"each second: [\d.]+ of [\d.]+ pages found, (?!0\.0 )[\d.]+ written")
            top.process.send_signal(end)
            self.assertEqual(top.wait(20), 0, top.text())
            node.terminate()
            self.assertEqual(node.wait(20), 0, node.text())
        self.assert_all_gone(top)

    def test_top_outlives_a_restart_of_the_node(self):
        node, path = self.start_node()
        top = self.start([BIN / "hicachectl", "node", "top", "--interval", "200ms", "--socket", path], "top")
        top.wait_for("each second")
        node.kill()
        top.wait_for("(?m)^peer_unreachable")
        shown = top.out.read_text().count("each second")
        self.start_node(name="again")
        self.wait_until(lambda: top.out.read_text().count("each second") > shown, top.text())
        top.terminate()
        self.assertEqual(top.wait(20), 0, top.text())

    def test_the_container_file_names_the_package_of_each_library(self):
        if not shutil.which("dpkg-query") or not shutil.which("objdump"):
            self.skipTest("no Debian packages here")
        named = set((ROOT / "launch/Containerfile").read_text().split()) | {"libc6", "libgcc-s1", "libstdc++6"}
        for program in (BIN / "hicache-node", BIN / "hicachectl"):
            text = subprocess.run(["objdump", "-p", program], capture_output=True, text=True, check=True).stdout
            needed = set(re.findall(r"NEEDED\s+(\S+)", text))
            text = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
            paths = {name: os.path.realpath(path) for name, path in re.findall(r"(\S+) => (/\S+)", text)}
            for name in sorted(needed & paths.keys()):
                # Packages from before /lib became a link know the file by its old path.
                known = [paths[name], paths[name].removeprefix("/usr")]
                owner = subprocess.run(["dpkg-query", "-S", *known], capture_output=True, text=True).stdout.split(":")[0]
                self.assertIn(owner, named, f"{name} of {program.name}")

    def test_is_a_member_of_the_cluster(self):
        index, address = self.start_index()
        node, _ = self.start_node("--index", address)
        status = [BIN / "hicachectl", "status", "--index", address, "--json"]
        shown = subprocess.run(status, capture_output=True, text=True, timeout=60)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn(str(64 << 20), shown.stdout)
        node.terminate()
        self.assertEqual(node.wait(20), 0, node.text())
        end = time.monotonic() + 20
        while str(64 << 20) in subprocess.run(status, capture_output=True, text=True, timeout=60).stdout:
            self.assertLess(time.monotonic(), end, "the index still shows the node")
            time.sleep(0.05)
        index.terminate()
        self.assertEqual(index.wait(20), 0, index.text())

    def test_outlives_a_restart_of_the_index(self):
        index, address = self.start_index()
        node, _ = self.start_node("--index", address)
        index.process.send_signal(signal.SIGKILL)
        index.process.wait()
        again, _ = self.start_index(listen=address)
        end = time.monotonic() + 30
        status = [BIN / "hicachectl", "status", "--index", address, "--json"]
        while str(64 << 20) not in subprocess.run(status, capture_output=True, text=True, timeout=60).stdout:
            self.assertLess(time.monotonic(), end, node.text())
            time.sleep(0.1)
        again.terminate()


class RanksTest(WithNode):
    """Ranks of hicache whose L3 is a node."""

    PAGE = 64

    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        self.rows = write_trace(self.trace, 300)

    def flags(self, path, *more):
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--device-pages", "512", "--hicache-storage-backend", "node",
                "--node", path, "--hicache-storage-backend-extra-config", '{"prefetch_threshold": 64}', *more]

    def least_computed(self):
        return sum(row["input_length"] - (row["input_length"] - 1) // self.PAGE * self.PAGE for row in self.rows)

    def test_pages_outlive_the_instance_that_wrote_them(self):
        node, path = self.start_node()
        first = self.replay("first", 2, *self.flags(path))
        self.assert_clean(first)
        self.assertEqual(cached(first), reusable_tokens(self.rows, self.PAGE))
        # By ranks that split the heads in another way.
        second = self.replay("second", 1, *self.flags(path))
        self.assert_clean(second)
        self.assertEqual(second["computed_tokens"], self.least_computed())
        self.assertGreater(second["cached_tokens"]["l3"], 0)
        node.terminate()
        self.assertEqual(node.wait(20), 0, node.text())

    def test_a_node_on_another_machine_serves_as_well(self):
        authority = Authority(self.folder, "ca")
        node, path = self.start_node("--listen", "127.0.0.1:0", *authority.sign("node"))
        address = node.wait_for(r"listening on (127\.\S+)").group(1)
        first = self.replay("first", 1, *self.flags(path))
        self.assert_clean(first)
        second = self.replay("second", 2, *self.flags(address), *authority.sign("rank"))
        self.assert_clean(second)
        self.assertEqual(second["computed_tokens"], self.least_computed())
        self.assertGreater(second["cached_tokens"]["l3"], 0)
        self.assert_clean(self.replay("third", 1, *self.flags(address), "--model-id", "another", *authority.sign("other")))

    def test_a_node_that_is_killed_costs_hits_and_nothing_else(self):
        node, path = self.start_node()
        instance = self.start_replay("instance", 2, *self.flags(path))
        self.wait_until(lambda: self.status(path)["pages"] > 0, "nothing was stored")
        node.process.send_signal(signal.SIGKILL)
        node.process.wait()
        again, _ = self.start_node(name="again")
        self.assertEqual(instance.wait(300), 0, instance.text())
        self.assert_clean(self.read_report(instance))
        # What is asked for anew finds the node that is there now.
        self.assert_clean(self.replay("next", 2, *self.flags(path)))
        self.assertGreater(self.status(path)["pages"], 0)
        again.terminate()
        self.assertEqual(again.wait(20), 0, again.text())

    def test_a_node_that_is_not_there_is_one_sentence(self):
        path = self.folder / "nobody"
        program = self.start_replay("instance", 1, *self.flags(path))
        self.assertNotEqual(program.wait(120), 0)
        self.assertIn("--node", program.text())
        self.assertIn(str(path), program.text())


class ServiceTest(WithNode):
    """The node as systemd starts it: with a socket that is open already, and a place to tell how it is."""

    def setUp(self):
        super().setUp()
        self.path = self.folder / "socket"
        self.opened = socket.socket(socket.AF_UNIX)
        self.news = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for one in (self.opened, self.news):
            self.addCleanup(one.close)
        self.opened.bind(str(self.path))
        self.opened.listen()
        self.news.bind(str(self.folder / "news"))
        self.news.settimeout(30)

    def start_service(self, *flags, opened=None, name="service", **environment):
        """The manager hands sockets over from descriptor 3 on, and says to whom."""
        number = (opened or self.opened).fileno()
        command = f'LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$0" "$@" 3<&{number}'
        environment = {"LISTEN_FDS": "1", "NOTIFY_SOCKET": str(self.folder / "news"), **environment}
        return self.start(["bash", "-c", command, BIN / "hicache-node", "--memory", "64MiB", *flags], name, environment, [number])

    def heard(self):
        return self.news.recv(4096).decode()

    def test_serves_at_the_socket_it_is_given_and_says_how_it_is(self):
        node = self.start_service(WATCHDOG_USEC="600000")
        self.assertEqual(self.heard(), f"READY=1\nSTATUS=exports 64.0 MiB at {self.path}")
        self.assertIn(f"listening on unix:{self.path}", node.text())
        self.store(self.path)
        for _ in range(3):
            self.assertEqual(self.heard(), "WATCHDOG=1")
        node.terminate()
        last = self.heard()
        while last == "WATCHDOG=1":
            last = self.heard()
        self.assertEqual(last, "STOPPING=1")
        self.assertEqual(node.wait(20), 0, node.text())
        self.assertTrue(self.path.exists(), "it is the manager's socket")

    def test_another_one_goes_on_with_the_socket_after_a_crash(self):
        node = self.start_service()
        self.assertIn("READY=1", self.heard())
        self.store(self.path)
        node.kill()
        self.start_service(name="again")
        self.assertIn("READY=1", self.heard())
        self.store(self.path)

    def test_without_a_watchdog_it_says_nothing_in_between(self):
        node = self.start_service(WATCHDOG_USEC="")
        self.assertIn("READY=1", self.heard())
        self.store(self.path)
        node.terminate()
        self.assertEqual(self.heard(), "STOPPING=1")

    def test_news_go_to_a_name_that_is_no_file_too(self):
        name = f"hicache-test-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
            news.bind("\0" + name)
            news.settimeout(30)
            self.start_service(NOTIFY_SOCKET="@" + name)
            self.assertIn(b"READY=1", news.recv(4096))

    def test_what_is_for_another_process_is_left_alone(self):
        path = self.folder / "own"
        node = self.start([BIN / "hicache-node", "--memory", "64MiB", "--socket", path], "own",
                          {"LISTEN_FDS": "1", "LISTEN_PID": "1", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
        node.wait_for("listening on unix:.*/own")

    def test_bad_sockets_are_one_sentence(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            for what, words in ((dict(opened=other), "LISTEN_FDS"), (dict(opened=self.news), "LISTEN_FDS"),
                                (dict(LISTEN_FDS="2"), "2 sockets")):
                node = self.start_service(name=f"bad{len(self.programs)}", **what)
                self.assertEqual(node.wait(30), 2, node.text())
                self.assertIn(words, node.text())
        node = self.start_service("--socket", self.folder / "other")
        self.assertEqual(node.wait(30), 2, node.text())
        self.assertIn("--socket", node.text())


if __name__ == "__main__":
    main()
