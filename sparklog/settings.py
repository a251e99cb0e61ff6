"""All settings, each declared once: name, type, default, unit, bounds and meaning.

Validation, `conf/broker.toml`, the tables in the documentation and the command line's help are generated from
`SETTINGS`. Names are Kafka's if Kafka has the setting. Python parameters have the same names with underscores.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from sparklog.errors import InvalidConfigError
from sparklog.units import help_of, parse_in_unit, takes_units

Value = int | float | str | bool


class Scope(Enum):
    """The component that reads a setting."""

    BROKER = "broker"
    TOPIC = "topic"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    CLIENT = "client"
    """The connection of every client."""


PARTITIONS_ADDED = "partitions.added"
"""Setting of a topic that the broker sets when a topic with keys gets partitions."""
LAKE_PREFIX = "lake."
MIRROR_PREFIX = "mirror."


def is_managed(name: str) -> bool:
    """Return True if commands or the broker manage the topic setting. A replacement of all settings keeps it."""
    return name == PARTITIONS_ADDED or name.startswith((LAKE_PREFIX, MIRROR_PREFIX))


class Setting(Struct, frozen=True):
    """One setting."""

    name: str
    """Dotted name."""
    scope: Scope
    """Component that reads the setting."""
    default: Value
    """Value if the setting is not given. Its type is the setting's type."""
    doc: str
    """Meaning of the setting."""
    unit: str = ""
    """Unit of the value; empty: none."""
    minimum: int | None = None
    """Smallest allowed number; None: no bound."""
    maximum: int | None = None
    """Largest allowed number; None: no bound."""
    choices: tuple[str, ...] = ()
    """Allowed values; empty: any value."""
    dynamic: bool = False
    """True if `sparklog config alter` can change the setting of a running broker. For a topic setting: the broker's
    default for its topics."""

    @property
    def parameter(self) -> str:
        """Name of the Python parameter."""
        return self.name.replace(".", "_")

    @property
    def type_name(self) -> str:
        """Name of the value's type, such as "int"."""
        return type(self.default).__name__

    def parse(self, value: object) -> Value:
        """Return `value` in this setting's type.

        Args:
            value: A value of the right type, or its text.

        Returns:
            The checked value.

        Raises:
            InvalidConfigError: The value has another type or is out of bounds.
        """
        expected = type(self.default)
        plain = isinstance(value, str | numbers.Real | os.PathLike)  # not None, not a list: they have a text, too
        parsed: Value
        try:
            if not plain or (expected in (int, float) and not str(value).isascii()):
                raise ValueError
            if expected is bool:
                parsed = _parse_bool(value)
            elif expected is int and not isinstance(value, bool):
                parsed = value if isinstance(value, int) else self._parse_int(str(value))
            elif expected is float and not isinstance(value, bool):
                parsed = float(str(value))
                if not math.isfinite(parsed):
                    raise ValueError
            elif expected is str:
                parsed = str(value)
            else:
                raise ValueError
        except ValueError as e:
            allowed = f"{_a(self.type_name)} is needed"
            if expected is int and takes_units(self.unit):
                allowed += f", or {help_of(self.unit)}"
            raise InvalidConfigError(f"{self.name} = {value!r}: {allowed}") from e
        self._check_bounds(parsed)
        return parsed

    def _parse_int(self, text: str) -> int:
        """Return the number of a text. A unit after the number is allowed where the setting is a time or a size."""
        if takes_units(self.unit) and text and text.strip()[-1:].isalpha():
            return parse_in_unit(text, self.unit)
        return int(text.replace("_", ""))

    def _check_bounds(self, value: Value) -> None:
        if self.choices and value not in self.choices:
            raise InvalidConfigError(
                f"{self.name} = {value!r}: use one of {', '.join(c or 'empty' for c in self.choices)}"
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise InvalidConfigError(f"{self.name} = {value}: at least {self.minimum} {self.unit}".rstrip())
            if self.maximum is not None and value > self.maximum:
                raise InvalidConfigError(f"{self.name} = {value}: at most {self.maximum} {self.unit}".rstrip())


def _a(type_name: str) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "true or false"}.get(type_name, "text")


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise ValueError


MIB = 1024 * 1024
_DAY_MS = 86_400_000
_B, _T, _P, _C, _S = Scope.BROKER, Scope.TOPIC, Scope.PRODUCER, Scope.CONSUMER, Scope.CLIENT

SETTINGS: tuple[Setting, ...] = (
    Setting("broker.id", _B, 0, "This broker's number in the cluster.", minimum=0, maximum=2**31 - 1),
    Setting("listen", _B, "127.0.0.1:9292", "Address and port to listen on; port 0 takes any free one."),
    Setting("listeners", _B, "", "Addresses to listen on, with the name of their security: NAME://HOST:PORT, several with commas, as in INTERNAL://10.0.0.1:9293,CLIENTS://:9292; an empty host: all addresses. Instead of listen."),
    Setting("listener.security.protocol.map", _B, "", "Security protocol of each listener name: NAME:PROTOCOL, several with commas; PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL stand for themselves. A setting for one listener alone has the prefix listener.name.<name in lower case>."),
    Setting("inter.broker.listener.name", _B, "", "The listener through which brokers talk to one another; empty: the first one."),
    Setting("allow.insecure", _B, False, "Allows a listener without authentication on an address that other hosts can reach; the broker warns at every start."),
    Setting("kafka.listeners", _B, "", "Where Kafka's clients connect, in the form of listeners, as in PLAINTEXT://127.0.0.1:9092: the broker then starts a gateway process, which speaks Kafka's protocol. Empty: no gateway."),
    Setting("kafka.advertised.listeners", _B, "", "Where Kafka's clients reach the listeners of kafka.listeners from elsewhere, as in advertised.listeners; empty: as in kafka.listeners, or on the host of advertised.listeners."),
    Setting("schema.registry.listeners", _B, "", "Where clients of the schema registry connect, as in http://127.0.0.1:8081 or https://0.0.0.0:8081: the gateway process then serves Confluent's REST interface. Clients authenticate with a user and a password if a listener of the broker has SASL, or if listener.security.protocol.map says so for http or https. Empty: no registry."),
    Setting("authorizer", _B, "", "Authorization of principals. Empty: every principal has all rights; acl: the rights that ACLs give (sparklog acl), and all rights for super.users.", choices=("", "acl")),
    Setting("super.users", _B, "", "Principals with all rights, regardless of ACLs: User:NAME, several with semicolons. The brokers' own principals are among them."),
    Setting("allow.everyone.if.no.acl.found", _B, False, "With authorizer = acl: gives every principal all rights on resources without an ACL. Without an ACL on the cluster, this includes changes of users and ACLs."),
    Setting("audit.log.file", _B, "", "File with a JSON line for each administrative act and each denial: principal, address, operation and result; a relative path is below data.dir; empty: none."),
    Setting("audit.log.max.bytes", _B, 100 * 1024 * 1024, "At this size the audit log is renamed to <file>.1, the previous one to <file>.2, and a new one begins; 0: never. A file that another program renames (logrotate) begins again by itself.", "bytes", 0, 2**40),
    Setting("audit.log.backups", _B, 10, "Number of renamed audit logs that are kept.", "files", 0, 1_000),
    Setting("quota.window.num", _B, 11, "After an idle time, a user or client id with a quota may use this number of windows, less one, in one burst.", "windows", 2, 1_000),
    Setting("quota.window.size.seconds", _B, 1, "Length of a window of the quotas.", "s", 1, 3_600),
    Setting("data.dir", _B, "./sparklog-data", "Directory of the partitions and the embedded metadata store."),
    Setting("zookeeper.connect", _B, "", "The cluster's ZooKeeper: HOST:PORT, several with commas, behind them a path, as in zk1:2181,zk2:2181/sparklog; empty: the cluster is this broker alone, and its metadata are in the data directory. A broker that ran without ZooKeeper copies its metadata into an empty ZooKeeper at its next start."),
    Setting("zookeeper.session.timeout.ms", _B, 12_000, "After this time without a heartbeat to ZooKeeper a broker counts as dead, and other replicas lead its partitions. Below replica.lag.time.max.ms.", "ms", 400, 600_000),
    Setting("zookeeper.username", _B, "", "User name of this broker at ZooKeeper (scheme digest); empty: no login."),
    Setting("zookeeper.password", _B, "", "The password for zookeeper.username. Best as ${file:/path} or ${env:NAME}."),
    Setting("zookeeper.set.acl", _B, False, "Restricts new ZooKeeper nodes of the brokers to zookeeper.username; existing nodes stay unchanged."),
    Setting("zookeeper.ssl.client.enable", _B, False, "Connects to ZooKeeper over TLS: zookeeper.connect then names its secure ports."),
    Setting("zookeeper.ssl.truststore.location", _B, "", "PEM file of the authorities that sign ZooKeeper's certificates; empty: those of the system."),
    Setting("zookeeper.ssl.keystore.location", _B, "", "PEM file with this broker's private key and certificate for ZooKeeper, where it asks for one."),
    Setting("zookeeper.ssl.endpoint.identification.algorithm", _B, "https", "With https ZooKeeper's certificate has to be for the host that zookeeper.connect names. Empty: for any host.", choices=("https", "")),
    Setting("broker.rack", _B, "", "Rack of the broker; replicas of a partition are spread over racks."),
    Setting("advertised.listeners", _B, "", "Address of this broker for clients and other brokers: HOST:PORT, or NAME://HOST:PORT for several listeners, with commas; empty: as in listen or listeners."),
    Setting("replica.selector.class", _B, "", "Replica that serves consumers with a client.rack: with RackAwareReplicaSelector, also under Kafka's package name, an in-sync follower in that rack; empty: the leader.", choices=("", "RackAwareReplicaSelector", "org.apache.kafka.common.replica.RackAwareReplicaSelector")),
    Setting("default.replication.factor", _B, -1, "Replicas of a new topic that names no number; -1: 3, or as many as there are brokers if these are fewer.", "replicas", -1, 100, dynamic=True),
    Setting("replica.lag.time.max.ms", _B, 30_000, "A follower that has lacked records for this time leaves the in-sync replicas.", "ms", 500, 3_600_000),
    Setting("replica.fetch.wait.max.ms", _B, 500, "Longest time that a leader may delay its response to a follower's fetch until new records arrive.", "ms", 1, 60_000),
    Setting("replica.fetch.backoff.ms", _B, 1_000, "Pause of a follower after a failed fetch.", "ms", 10, 60_000),
    Setting("replica.fetch.max.bytes", _B, MIB, "Most bytes of one partition in a response to a follower, but always at least one batch.", "bytes", 1024, 1024 * MIB),
    Setting("replica.fetch.response.max.bytes", _B, 10 * MIB, "Most bytes of a response to a follower, but always at least one batch.", "bytes", 1024, 1024 * MIB),
    Setting("auto.leader.rebalance.enable", _B, True, "Lets the controller return partitions to their preferred leaders."),
    Setting("leader.imbalance.check.interval.seconds", _B, 300, "Interval at which the controller looks for partitions that are not led by their preferred leaders.", "s", 1, 86_400),
    Setting("leader.imbalance.per.broker.percentage", _B, 10, "Share of a broker's preferred partitions, in percent, that other brokers may lead; above it the controller returns them.", "%", 0, 100),
    Setting("log.dirs", _B, "", "Directories of the partitions, separated by commas, best one per disk; empty: data.dir. data.dir keeps the metadata store."),
    Setting("data.file.mode", _B, "0640", "Mode of the broker's new files, as for chmod; users with read permission may also enter directories. Clients on the same host without permission use the socket. The umask can only restrict it further. Only the broker's user can read metadata.db, which has the users.", choices=("0600", "0640", "0644", "0660")),
    Setting("data.file.group", _B, "", "The group that new files of the broker belong to, by name or number: with data.file.mode its members may map them, and other users may not. Empty: the broker's own."),
    Setting("log.open.files.max", _B, 1024, "Segment files kept open; at most half of `ulimit -n`.", "files", 16, 10_000_000),
    Setting("num.partitions", _B, 1, "Partitions of a new topic that names no number.", minimum=1, maximum=10_000, dynamic=True),
    Setting("auto.create.topics.enable", _B, True, "Creates a missing topic at the first write to it: an envelope topic with num.partitions partitions. Reads never create a topic, and neither do names that begin with two underscores.", dynamic=True),
    Setting("auto.create.typed.topics", _B, False, "With schema.registry.listeners: the first schema of a subject TOPIC-value creates the topic with its columns; a new version adds columns and makes them wider, or is refused."),
    Setting("schema.registry.url", _B, "", "With kafka.listeners: address of a schema registry outside of the cluster, http://HOST:PORT or https://HOST:PORT, for topics whose kafka.value.format has schemas; empty: the cluster's own registry."),
    Setting("num.io.threads", _B, 2, "Threads that append and read cold data, off the event loop.", "threads", 1, 64),
    Setting("num.network.threads", _B, 2, "Threads for encryption and authentication, off the event loop.", "threads", 1, 64),
    Setting("max.connections", _B, 10_000, "Largest number of connections; further connections get an error and are closed. The number is smaller if `ulimit -n` has no room for it beside the files.", "connections", 1, 1_000_000, dynamic=True),
    Setting("max.connections.per.ip", _B, 5_000, "Largest number of connections from one address; further connections get an error and are closed.", "connections", 0, 2**31 - 1, dynamic=True),
    Setting("max.connections.per.ip.overrides", _B, "", "Different numbers for some addresses: 10.0.0.1:100,[::1]:5.", dynamic=True),
    Setting("max.connection.creation.rate", _B, 2**31 - 1, "New connections a second of all clients together; further connections wait, or are refused. The brokers' own listener has no such limit.", "connections/s", 1, 2**31 - 1, dynamic=True),
    Setting("connections.max.idle.ms", _B, 600_000, "An idle connection is closed after this time.", "ms", 1_000, _DAY_MS, dynamic=True),
    Setting("request.read.timeout.ms", _B, 30_000, "A client that stalls in the middle of a frame is disconnected after this time.", "ms", 100, 3_600_000, dynamic=True),
    Setting("request.read.stall.ms", _B, 5_000, "While other requests wait for memory (queued.max.request.bytes), the broker disconnects a client that sends less than 64 KiB of a request in this time, and then the slowest one.", "ms", 100, 3_600_000),
    Setting("socket.request.max.bytes", _B, 100 * MIB, "Largest frame; a larger one is refused and the connection closed.", "bytes", 64 * 1024, 1024 * MIB),
    Setting("response.write.timeout.ms", _B, 60_000, "A client that does not read its answer is disconnected after this time; if the answer has fetched records, after connections.max.idle.ms.", "ms", 100, 3_600_000, dynamic=True),
    Setting("response.max.bytes", _B, 16 * MIB, "Largest response, without the records of a fetch; longer lists are split into pages.", "bytes", 64 * 1024, 16 * MIB),
    Setting("queued.max.request.bytes", _B, 512 * MIB, "Memory for requests in progress and for unread responses. Beyond it, the broker reads from no socket. Unread responses get half of it; beyond that, the broker disconnects the slowest reader.", "bytes", MIB, 64 * 1024 * MIB),
    Setting("queued.max.inflated.bytes", _B, 256 * MIB, "Memory for all decompressed batches together: for checks at the append, compaction and look-ups by time. A larger single batch is refused, regardless of its topic's limits; a batch of more than 1 GiB is always refused.", "bytes", 8 * MIB, 64 * 1024 * MIB),
    Setting("fetch.max.bytes", _B, 55 * MIB, "Most bytes in the response to one fetch, regardless of the client's limit.", "bytes", MIB, 1024 * MIB),
    Setting("fetch.purgatory.max", _B, 100_000, "Largest number of waiting fetches; further fetches are answered at once.", "requests", 1, 10_000_000),
    Setting("local.socket.enabled", _B, True, "Offers a Unix socket to producers and consumers on the same host, which costs half the processor time of TCP."),
    Setting("local.read.enabled", _B, True, "Lets clients on the same host map the segment files instead of using the socket."),
    Setting("log.flush.interval.ms", _B, 60_000, "Interval at which appended data are fsynced in the background and recovery points are written; rolled segments are fsynced sooner.", "ms", 100, _DAY_MS, dynamic=True),
    Setting("log.retention.check.interval.ms", _B, 300_000, "Interval at which segments beyond retention.ms and retention.bytes are deleted.", "ms", 10, _DAY_MS, dynamic=True),
    Setting("log.retention.clock.catch.up.rate", _B, 24, "Pace of ages for retention and expiry after the clock has jumped forward, or the machine was off for a long time: this multiple of real time, until ages have caught up. The broker's log reports delayed deletions.", "", 2, 1_000_000),
    Setting("log.cleaner.threads", _B, 1, "Threads that compact the logs of topics with cleanup.policy=compact.", "threads", 1, 64),
    Setting("log.cleaner.dedupe.buffer.bytes", _B, 128 * MIB, "Memory for the keys of the log being compacted, 24 bytes each, of all threads together; keys that do not fit wait for the next run.", "bytes", MIB, 64 * 1024 * MIB),
    Setting("log.cleaner.io.max.bytes.per.second", _B, -1, "Most bytes a second that compaction reads and writes, all threads together; -1 without limit.", "bytes/s", -1, 2**62, dynamic=True),
    Setting("log.cleaner.backoff.ms", _B, 15_000, "Pause of a thread when no log is due for compaction.", "ms", 10, _DAY_MS, dynamic=True),
    Setting("transaction.state.log.num.partitions", _B, 8, "Partitions of __transaction_state at its creation; an existing topic keeps its number.", minimum=1, maximum=1_000),
    Setting("producer.id.expiration.ms", _B, _DAY_MS, "A partition forgets a producer that has written nothing for this long and has no transaction open; a later retry is not recognised.", "ms", 1_000, 2**62),
    Setting("transaction.max.timeout.ms", _B, 900_000, "Longest timeout that a producer with a transactional id may request.", "ms", 1, _DAY_MS),
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", _B, 10_000, "Interval at which transactions that are open for longer than their timeout are aborted.", "ms", 10, 3_600_000),
    Setting("transactional.id.expiration.ms", _B, 7 * _DAY_MS, "A transactional id is forgotten when it has not been used for this long.", "ms", 1_000, 2**62),
    Setting("transactional.app.expiration.ms", _B, 90 * _DAY_MS, "The committed version of an application (a Spark query) is forgotten when it has not been used for this long.", "ms", 1_000, 2**62),
    Setting("max.transactional.ids.per.partition", _B, 20_000, "Transactional ids that a partition of __transaction_state keeps, and as many applications. For a new id, the least recently used id without a transaction is forgotten; a new application is refused.", "ids", 10, 10_000_000),
    Setting("offsets.topic.num.partitions", _B, 8, "Partitions of __consumer_offsets at its creation; an existing topic keeps its number.", minimum=1, maximum=1_000),
    Setting("offsets.retention.minutes", _B, 10_080, "Committed offsets are forgotten when their group has had neither members nor commits for this long.", "minutes", 0, 2**31 - 1),
    Setting("offsets.retention.check.interval.ms", _B, 600_000, "Interval at which offsets that are older than offsets.retention.minutes are removed.", "ms", 10, _DAY_MS),
    Setting("group.consumer.session.timeout.ms", _B, 45_000, "A group member without a heartbeat for this time is removed, unless it requests another time.", "ms", 10, _DAY_MS),
    Setting("group.consumer.heartbeat.interval.ms", _B, 5_000, "Interval of the members' heartbeats (at least three within their session).", "ms", 10, _DAY_MS),
    Setting("group.max.size", _B, 10_000, "Members of one group at most.", "members", 1, 1_000_000),
    Setting("max.groups.per.partition", _B, 20_000, "Groups with members, and groups with offsets, that one partition of __consumer_offsets keeps; further ones are refused.", "groups", 10, 10_000_000),
    Setting("max.offsets.per.partition", _B, 500_000, "Committed offsets that one partition of __consumer_offsets keeps; further ones are refused.", "offsets", 10, 2**31 - 1),
    Setting("remote.log.storage.url", _B, "", "Object store for sealed segments of topics with remote.storage.enable: any fsspec URL, as in s3://bucket/prefix or file:///mnt/tier; empty: none."),
    Setting("remote.log.storage.options", _B, "", "Access to remote.log.storage.url: a JSON object of fsspec storage options, or the path of a file that holds one (best for secrets)."),
    Setting("remote.log.manager.task.interval.ms", _B, 30_000, "Interval at which segments are copied to the object store, and expired local files and remote segments are deleted.", "ms", 10, _DAY_MS),
    Setting("remote.log.reader.threads", _B, 4, "Threads that read from the object store.", "threads", 1, 64),
    Setting("remote.log.reader.cache.bytes", _B, 1024 * MIB, "Size of the cache in data.dir for data from the object store.", "bytes", MIB, 2**62),
    Setting("metrics.listen", _B, "", "Address and port of the pages /metrics (Prometheus text or OpenMetrics), /health/live and /health/ready, over HTTP and without a password; port 0 takes any free one; empty: none."),
    Setting("metrics.allowed.hosts", _B, "", "Host names, separated by commas, that requests for the pages of metrics.listen may use, besides addresses, localhost and the hosts of the listeners; *: any name, so that other sites' pages can read them through a browser on this network."),
    Setting("metrics.topics.max", _B, 1_000, "Largest number of topics with metrics of their own; all other topics together are shown as (others).", "topics", 0, 100_000),
    Setting("metrics.groups.max", _B, 1_000, "Largest number of groups with metrics of their own, in the names' order; the lag of all other groups together is shown as (others).", "groups", 0, 100_000, dynamic=True),
    Setting("metrics.partitions.max", _B, 0, "Largest number of partitions with metrics of their own: topics in the names' order, internal topics last, each topic as a whole or not at all; 0: only sums by topic.", "partitions", 0, 100_000, dynamic=True),
    Setting("slow.request.threshold.ms", _B, 5_000, "A request that takes longer is logged with its phases, at most ten in ten seconds; -1: none. A fetch's wait for records and the sending of the response do not count.", "ms", -1, _DAY_MS, dynamic=True),
    Setting("log.level", _B, "INFO", "Lowest level of the lines in the broker's log.", choices=("DEBUG", "INFO", "WARNING", "ERROR"), dynamic=True),
    Setting("log.file", _B, "", "File for the broker's log and that of its gateway and lake worker; a relative path is below data.dir; empty: standard error."),
    Setting("log.file.max.bytes", _B, 100 * MIB, "At this size the log file is renamed to <file>.1, the previous one to <file>.2, and a new one begins; 0: never. A file that another program renames (logrotate) begins again by itself.", "bytes", 0, 2**40),
    Setting("log.file.backups", _B, 5, "Number of renamed log files that are kept.", "files", 0, 1_000),
    Setting("log.format", _B, "text", "Form of the broker's log on stderr. text: lines for people; json: an object with keys per line. Neither contains records.", choices=("text", "json")),
    Setting("ssl.keystore.type", _B, "PEM", "Form of ssl.keystore.location.", choices=("PEM",)),
    Setting("ssl.keystore.location", _B, "", "File with the private key and the certificate with its chain."),
    Setting("ssl.keystore.certificate.chain", _B, "", "The certificate and its chain as text."),
    Setting("ssl.keystore.key", _B, "", "The private key as text."),
    Setting("ssl.key.password", _B, "", "Password of the private key."),
    Setting("ssl.certificate.location", _B, "", "File with the certificate and its chain; with ssl.key.location instead of ssl.keystore.location."),
    Setting("ssl.certificate.pem", _B, "", "As ssl.keystore.certificate.chain, as librdkafka names it."),
    Setting("ssl.key.location", _B, "", "File with the private key."),
    Setting("ssl.key.pem", _B, "", "As ssl.keystore.key, as librdkafka names it."),
    Setting("ssl.truststore.type", _B, "PEM", "Form of ssl.truststore.location.", choices=("PEM",)),
    Setting("ssl.truststore.location", _B, "", "File with the certificates of the authorities whose certificates are accepted."),
    Setting("ssl.truststore.certificates", _B, "", "The authorities' certificates as text."),
    Setting("ssl.ca.location", _B, "", "As ssl.truststore.location, as librdkafka names it."),
    Setting("ssl.ca.pem", _B, "", "As ssl.truststore.certificates, as librdkafka names it."),
    Setting("ssl.client.auth", _B, "none", "Certificates of clients: none, requested (optional, but a given one must be valid), required.", choices=("none", "requested", "required")),
    Setting("ssl.enabled.protocols", _B, "TLSv1.2,TLSv1.3", "Versions of TLS; older versions cannot be enabled."),
    Setting("ssl.endpoint.identification.algorithm", _B, "https", "With https another broker's certificate must name the requested host; empty: any host.", choices=("https", "")),
    Setting("ssl.principal.mapping.rules", _B, "DEFAULT", "Rules from a certificate's name to the name of a user, as in Kafka (KIP-371), separated by commas; the first matching rule counts."),
    Setting("ssl.reload.interval.ms", _B, 10_000, "Interval at which changed certificates and keys are read for new connections; also at once after SIGHUP.", "ms", 100, _DAY_MS),
    Setting("sasl.enabled.mechanisms", _B, "SCRAM-SHA-512,SCRAM-SHA-256", "Mechanisms of clients at SASL_PLAINTEXT and SASL_SSL listeners: SCRAM-SHA-512, SCRAM-SHA-256, PLAIN (with TLS only), OAUTHBEARER."),
    Setting("sasl.mechanism.inter.broker.protocol", _B, "SCRAM-SHA-512", "Mechanism of this broker at other brokers.", choices=("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")),
    Setting("sasl.jaas.config", _B, "", "Identity of this broker at other brokers: a login module with username and password, as in Kafka. Best as ${file:/path} or ${env:NAME}."),
    Setting("sasl.scram.initial.credentials", _B, "", "First users of a cluster, until `sparklog user` changes or removes them; the same for all brokers: NAME=MECHANISM:salt=…,stored_key=…,server_key=…,iterations=…, several with semicolons."),
    Setting("sasl.oauthbearer.jwks.endpoint.url", _B, "", "Address of the public keys of tokens: https://…, or file:///path."),
    Setting("https.ca.location", _B, "", "PEM file of the authorities for sasl.oauthbearer.jwks.endpoint.url; empty: those of the system."),
    Setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", _B, 3_600_000, "Interval at which the keys are read again; a file is checked at ssl.reload.interval.ms.", "ms", 1_000, _DAY_MS),
    Setting("sasl.oauthbearer.jwks.endpoint.outage.ms", _B, _DAY_MS, "Time since the last successful read for which the keys stay in use while they cannot be read; after it tokens are refused until a read succeeds.", "ms", 1_000, 365 * _DAY_MS),
    Setting("sasl.oauthbearer.expected.audience", _B, "", "Required audiences of tokens (claim aud), several with commas."),
    Setting("sasl.oauthbearer.expected.issuer", _B, "", "Required issuer of tokens (claim iss)."),
    Setting("sasl.oauthbearer.sub.claim.name", _B, "sub", "The claim that names the user."),
    Setting("sasl.oauthbearer.clock.skew.seconds", _B, 30, "Largest tolerated difference to the issuer's clock.", "s", 0, 3_600),
    Setting("sasl.oauthbearer.signature.algorithms", _B, "RS256", "Allowed signature algorithms of tokens, several with commas; only algorithms with a public and a private key."),
    Setting("connections.max.reauth.ms", _B, 0, "A client of a SASL listener has to authenticate again within this time (KIP-368), else its connection ends; 0: never.", "ms", 0, 2**53),
    Setting("connection.failed.authentication.delay.ms", _B, 100, "Delay of the response and of the end of the connection after a failed authentication.", "ms", 0, 60_000),
    Setting("connections.authentication.timeout.ms", _B, 30_000, "A connection whose peer has not authenticated within this time is closed; TLS may use a third of it.", "ms", 100, 600_000),
    Setting("connections.authenticating.max", _B, 1_000, "Largest number of connections without a completed authentication, on all listeners with TLS or SASL; beyond it the broker closes the oldest of them.", "connections", 1, 1_000_000),
    Setting("lake.worker.enable", _B, True, "Starts a lake worker beside the broker when a topic has a Delta table and the package deltalake is installed."),
    Setting("lake.worker.config", _B, "", "Properties file with the client settings of the lake worker that the broker starts, as for --command-config; needed if the first listener requires TLS or a login."),
    Setting("mirror.worker.enable", _B, True, "Starts a mirror worker beside the broker when a topic mirrors a topic of a Kafka cluster."),
    Setting("mirror.worker.config", _B, "", "Properties file with the client settings of the mirror worker that the broker starts, as for --command-config; needed if the first listener requires TLS or a login."),
    Setting("min.insync.replicas", _T, 1, "Records with acks=all are refused while fewer replicas are in sync; at most the number of replicas.", "replicas", 1, 100),
    Setting("unclean.leader.election.enable", _T, False, "Lets a replica that may lack acknowledged records lead when no other replica is left."),
    Setting("flush.mode", _T, "none", "Time of the fsync of appends. none: the operating system and the background write them; group: before they are acknowledged, many with one fsync.", choices=("none", "group")),
    Setting("flush.messages", _T, -1, "An append waits for an fsync when this many records are not on the disk; -1: never.", "records", -1, 2**62, dynamic=True),
    Setting("flush.ms", _T, -1, "Longest time until a background fsync of appended records; -1: log.flush.interval.ms.", "ms", -1, _DAY_MS, dynamic=True),
    Setting("segment.bytes", _T, 1024 * MIB, "A segment is rolled before it grows beyond this size.", "bytes", 4096, 2047 * MIB, dynamic=True),
    Setting("segment.ms", _T, 7 * _DAY_MS, "A segment is rolled when a record is this much newer than its first.", "ms", 1, 2**62, dynamic=True),
    Setting("segment.jitter.ms", _T, 0, "Largest random reduction of segment.ms per partition, so that segments do not all roll at once.", "ms", 0, 2**62),
    Setting("index.interval.bytes", _T, 4096, "One offset-index entry per this many bytes of log.", "bytes", 1, 2**31 - 1),
    Setting("segment.index.bytes", _T, 10 * MIB, "A segment is rolled when its offset index has this size.", "bytes", 64, 1024 * MIB),
    Setting("max.message.bytes", _T, 8 * MIB, "Largest batch that the broker accepts.", "bytes", 1024, 1024 * MIB, dynamic=True),
    Setting("max.message.inflated.ratio", _T, 16, "Largest decompressed size of a batch, as a multiple of max.message.bytes; larger batches are neither accepted nor read.", "", 1, 1024),
    Setting("message.timestamp.type", _T, "CreateTime", "Source of a record's timestamp: the producer, or the broker at the append.", choices=("CreateTime", "LogAppendTime")),
    Setting("message.timestamp.after.max.ms", _T, 3_600_000, "A record whose own timestamp is further than this ahead of the broker's clock is refused: retention would keep the record and its segment for that additional time.", "ms", 0, 2**62),
    Setting("max.producers.per.partition", _T, 10_000, "Largest number of producers that a partition remembers. For a new producer, the partition forgets the oldest one without an open transaction, and no longer recognises its retries.", "producers", 10, 10_000_000),
    Setting("compression.type", _T, "producer", "With kafka.listeners: compression in which Kafka's clients get the topic's batches; producer: each batch as its producer has compressed it. Clients that do not know a codec can read the topic with uncompressed.", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
    Setting("kafka.value.format", _T, "json", "With kafka.listeners: form of a typed topic's records for Kafka's clients. json: an object with the columns as fields; avro, protobuf, json-schema: records in Confluent's framing, with the schemas of the subject TOPIC-value.", choices=("json", "avro", "protobuf", "json-schema")),
    Setting("kafka.key.format", _T, "", "Form of a typed topic's keys for Kafka's clients; the hash of the key in this form chooses the partition. json: a JSON object of the key columns in canonical form; text: the only key column, as its bytes; avro, protobuf, json-schema: in Confluent's framing, with the topic's kafka.key.schema; empty: JSON, but the columns' values choose the partition. Fixed when the topic is created: by default text for one key column of text, json for other key columns.", choices=("", "json", "text", "avro", "protobuf", "json-schema")),
    Setting("kafka.key.schema", _T, "", "Schema of the topic's keys and its id, for kafka.key.format avro, protobuf or json-schema: the schema of the subject TOPIC-key at the time of the first record with a key. It is set once, by the gateway."),
    Setting("kafka.refused.records", _T, "refuse", "With kafka.listeners: treatment of records of Kafka's clients that do not fit a typed topic. refuse: the client gets INVALID_RECORD, and none of the batch is stored; topic: they are rows of TOPIC.refused with the reason, and the others of the batch are stored.", choices=("refuse", "topic")),
    Setting("cleanup.policy", _T, "delete", "Removal of old records: delete drops old segments by retention.ms and retention.bytes, compact keeps the last record of each key; or both.", choices=("delete", "compact", "compact,delete")),
    Setting("retention.ms", _T, 7 * _DAY_MS, "A segment is deleted when its newest record is older than this, by the record's timestamp; -1 keeps records forever.", "ms", -1, 2**62, dynamic=True),
    Setting("retention.bytes", _T, -1, "The oldest segments of a partition are deleted while the others hold at least this much; -1 keeps all.", "bytes", -1, 2**62, dynamic=True),
    Setting("remote.storage.enable", _T, False, "Copies sealed segments to the broker's remote.log.storage.url; not for compacted topics."),
    Setting("local.retention.ms", _T, -2, "With remote.storage.enable: a copied segment's local files are deleted when its newest record is older than this; -2: only when retention.ms deletes it everywhere, -1: not by age.", "ms", -2, 2**62, dynamic=True),
    Setting("local.retention.bytes", _T, -2, "With remote.storage.enable: the oldest copied segments' local files are deleted while the other local ones hold at least this much; -2: as retention.bytes, -1: not by size.", "bytes", -2, 2**62, dynamic=True),
    Setting("file.delete.delay.ms", _T, 60_000, "Time that the files of a deleted segment stay on the disk for running reads.", "ms", 0, _DAY_MS, dynamic=True),
    Setting("min.cleanable.dirty.ratio", _T, 0.5, "A log is compacted when this share of its bytes has been written since the last time.", "", 0, 1, dynamic=True),
    Setting("delete.retention.ms", _T, _DAY_MS, "Time that a tombstone (a record without a value) stays after compaction has removed the records that it deletes.", "ms", 0, 2**62, dynamic=True),
    Setting("min.compaction.lag.ms", _T, 0, "A record is not compacted before it has this age.", "ms", 0, 2**62, dynamic=True),
    Setting("max.compaction.lag.ms", _T, 2**62, "A record is compacted at the latest at about this age, regardless of the dirty ratio.", "ms", 1, 2**62, dynamic=True),
    Setting(PARTITIONS_ADDED, _T, False, "True if the topic has keys and got partitions after its creation, so that rows of one key can be in several partitions. Set by the broker."),
    Setting("lake.location", _T, "", "Location of the topic's Delta table: a directory, s3://, gs:// or az://; empty: the topic has no table. `sparklog lake enable` sets it."),
    Setting("lake.mode", _T, "append", "Content of the Delta table. append: every record is a row; upsert: the newest row of each key.", choices=("append", "upsert")),
    Setting("lake.commit.interval.ms", _T, 10_000, "Interval at which new records are committed to the Delta table.", "ms", 100, _DAY_MS),
    Setting("lake.file.size.bytes", _T, 128 * MIB, "Size at which a Parquet file of the Delta table is full; smaller files are merged in the background.", "bytes", 64 * 1024, 8192 * MIB),
    Setting("lake.partition.by", _T, "", "Columns that partition the Delta table, separated by commas; empty: none. Fixed when the table is created."),
    Setting("lake.hold.retention", _T, True, "With true, retention, compaction and deletion of records keep every record that the Delta table does not have yet."),
    Setting("lake.paused", _T, "", "Reason of the pause of the Delta table; empty: commits are not paused. `sparklog lake pause` and `sparklog lake resume` set it, and the worker when the table needs a decision."),
    Setting("lake.table.id", _T, "", "Id of the topic's Delta table since its first commit, by which a dropped or foreign table is recognised. Set by the worker."),
    Setting("mirror.name", _T, "", "Name of the mirror that fills the topic, which only the mirror can write to; empty: the topic is open for writers. `sparklog mirror create` sets it, `sparklog mirror promote` empties it."),
    Setting("mirror.source", _T, "", "Address of the mirror's source, such as kafka://host:9092, or sparklog://host:9092 for another sparklog cluster. `sparklog mirror create` sets it."),
    Setting("mirror.source.config", _T, "", "Properties file with the client settings for the source (TLS, login), on the hosts of the mirror workers; empty: plaintext."),
    Setting("mirror.source.topic.id", _T, "", "Id of the source's topic, by which a topic that was deleted and created again is recognised; empty: the source has no ids."),
    Setting("mirror.promoted.topic.id", _T, "", "Id of the source's topic of which the topic was the copy until its promotion; empty: it was none. `sparklog mirror promote` sets it, and `sparklog checkpoint move` needs it."),
    Setting("mirror.topics", _T, "", "Regular expression of the topics that the mirror copies; topics that the source adds are created here."),
    Setting("mirror.groups", _T, "", "Regular expression of the consumer groups whose offsets the mirror copies; empty: none."),
    Setting("mirror.value.format", _T, "", "Format of the source's values, which become the columns of the topic; empty: the values stay bytes. `sparklog mirror create` sets it.", choices=("", "json", "avro", "protobuf", "json-schema")),
    Setting("mirror.key.format", _T, "", "Format of the source's keys if they have schemas; empty: text or JSON. `sparklog mirror create` sets it.", choices=("", "avro", "protobuf", "json-schema")),
    Setting("mirror.registry", _T, "", "Address of the schema registry that has the schemas of the source's values and keys, http:// or https:// with host and port. `sparklog mirror create` sets it."),
    Setting("mirror.columns", _T, "", "Columns of the typed topics that the mirror creates. `sparklog mirror create` sets it."),
    Setting("mirror.headers", _T, "", "Headers of records for a typed topic, which has no place for them. empty: the records are refused; drop: the headers are left out.", choices=("", "drop")),
    Setting("mirror.bytes.per.second", _T, 0, "Largest rate at which one worker fetches the records of the mirror from its source; 0: no limit. `sparklog mirror create` sets it.", "bytes/s", 0, 2**62),
    Setting("mirror.refused.max", _T, 10_000, "Number of refused records of a typed topic at which its mirror pauses before the next one; -1: no limit.", "records", -1, 2**62),
    Setting("mirror.refused.of", _T, "", "Name of the typed topic whose refused records the topic has. `sparklog mirror create` sets it."),
    Setting("mirror.paused", _T, "", "Reason of the mirror's pause; empty: the mirror is not paused. `sparklog mirror pause` and `sparklog mirror resume` set it, and the worker when the topic needs a decision."),
    Setting("mirror.lost", _T, "", "Ranges of offsets that the source had deleted before the mirror read them: PARTITION:FIRST-END, separated by commas. The worker sets it."),
    Setting("acks", _P, "all", "Acknowledgement of a batch. 0: none; 1: after the leader's append; all: after all in-sync replicas have it.", choices=("0", "1", "all")),
    Setting("enable.idempotence", _P, True, "Lets the broker recognise repeated batches, so that a retry never stores a record twice. Needs acks=all; off by default with other acks."),
    Setting("transactional.id", _P, "", "Name of a transactional producer across its processes: a new producer with the same name fences the old one. Empty: no transactions."),
    Setting("transaction.timeout.ms", _P, 60_000, "A transaction that has not ended after this time is aborted.", "ms", 1, _DAY_MS),
    Setting("linger.ms", _P, 5, "Time that a batch waits for more records of send; send_batch and the Spark sink do not wait.", "ms", 0, 3_600_000),
    Setting("batch.size.bytes", _P, MIB, "Size, before compression, at which a batch is sent.", "bytes", 1, 512 * MIB),
    Setting("compression", _P, "none", "Compression of batches (Arrow buffer compression).", choices=("none", "lz4", "zstd")),
    Setting("buffer.memory", _P, 128 * MIB, "Memory for unacknowledged records; when it is full, send blocks.", "bytes", 64 * 1024, 64 * 1024 * MIB),
    Setting("max.block.ms", _P, 60_000, "Longest time that send waits for memory or metadata, and that init_transactions, commit_transaction and abort_transaction try, before they raise.", "ms", 0, _DAY_MS),
    Setting("delivery.timeout.ms", _P, 120_000, "Longest time for the delivery of a batch with retries, before its futures fail.", "ms", 1, _DAY_MS),
    Setting("client.id", _P, "", "Name of this client: quotas by client id use it, the audit log shows it; at most 255 printable characters."),
    Setting("request.timeout.ms", _P, 30_000, "Longest wait of one request for its response.", "ms", 1, _DAY_MS),
    Setting("retry.backoff.ms", _P, 50, "First pause before a retry; doubles up to retry.backoff.max.ms.", "ms", 0, 60_000),
    Setting("retry.backoff.max.ms", _P, 1_000, "Longest pause before a retry.", "ms", 0, 600_000),
    Setting("max.in.flight.requests.per.connection", _P, 5, "Largest number of unanswered requests per connection.", "requests", 1, 100),
    Setting("group.id", _C, "", "The group that shares the topics' partitions and keeps the positions; empty: none."),
    Setting("group.instance.id", _C, "", "Name of this member that stays the same when it is started again: its partitions wait for it (static membership)."),
    Setting("client.id", _C, "", "Name of this client: quotas by client id use it, the audit log and `sparklog group describe` show it; at most 255 printable characters."),
    Setting("client.rack", _C, "", "Rack of this consumer, as in broker.rack: brokers with replica.selector.class then let it read from an in-sync replica in that rack; empty: from leaders."),
    Setting("group.remote.assignor", _C, "", "Assignment of the partitions to members: uniform or range; empty: the choice of the other members, else uniform.", choices=("", "uniform", "range")),
    Setting("session.timeout.ms", _C, 0, "A member without a heartbeat for this time is removed; 0: the broker's group.consumer.session.timeout.ms.", "ms", 0, _DAY_MS),
    Setting("max.poll.interval.ms", _C, 300_000, "A member that does not call poll for this time leaves the group; also the limit for revoking partitions.", "ms", 1, _DAY_MS),
    Setting("enable.auto.commit", _C, True, "With group.id: poll and close commit the positions of the records that earlier polls returned."),
    Setting("auto.commit.interval.ms", _C, 5_000, "Interval of the commits of enable.auto.commit.", "ms", 0, _DAY_MS),
    Setting("consumer.timeout.ms", _C, -1, "Time that `for record in consumer` waits for the next record before it ends; -1: forever.", "ms", -1, _DAY_MS),
    Setting("default.api.timeout.ms", _C, 60_000, "Longest time that assign, commit, committed and position try before they raise, and that close and unsubscribe wait.", "ms", 1, _DAY_MS),
    Setting("metadata.max.age.ms", _C, 30_000, "Interval at which a pattern subscription looks for topics.", "ms", 10, _DAY_MS),
    Setting("auto.offset.reset", _C, "earliest", "Start of reading when there is no position, or it is out of range; none raises an error.", choices=("earliest", "latest", "none")),
    Setting("isolation.level", _C, "read_uncommitted", "Visible records. read_committed: those of committed transactions and those outside of transactions, up to the first open transaction; read_uncommitted: all.", choices=("read_uncommitted", "read_committed")),
    Setting("fetch.min.bytes", _C, 1, "A fetch waits until this many bytes are available.", "bytes", 1, 1024 * MIB),
    Setting("fetch.max.wait.ms", _C, 500, "Longest time that a fetch waits for fetch.min.bytes.", "ms", 0, 60_000),
    Setting("fetch.max.bytes", _C, 10 * MIB, "Most bytes of one fetch.", "bytes", 1024, 1024 * MIB),
    Setting("max.partition.fetch.bytes", _C, 8 * MIB, "Most bytes per partition of one fetch, but always at least one batch.", "bytes", 1024, 1024 * MIB),
    Setting("max.poll.records", _C, 500, "Most records that one poll returns; poll_batches returns whole batches and ignores the setting.", "records", 1, 10_000_000),
    Setting("prefetch.bytes", _C, 64 * MIB, "Memory for batches fetched ahead of poll. 0: none is fetched ahead, so that a poll through the socket returns the records of one batch.", "bytes", 0, 16 * 1024 * MIB),
    Setting("local.read", _C, "auto", "Way to read older records. auto: map the broker's files if they are visible on the same host; off: use the socket.", choices=("auto", "off")),
    Setting("check.crcs", _C, True, "Makes the reader verify every batch's checksum."),
    Setting("request.timeout.ms", _C, 30_000, "Longest wait of one request for its response.", "ms", 1, _DAY_MS),
    Setting("security.protocol", _S, "PLAINTEXT", "Encryption (SSL, SASL_SSL) and authentication with SASL (SASL_PLAINTEXT, SASL_SSL). Has to match the broker's listener.", choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    Setting("sasl.mechanism", _S, "", "Mechanism of authentication; librdkafka's name sasl.mechanisms works as well. PLAIN and OAUTHBEARER only with SASL_SSL.", choices=("", "SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")),
    Setting("sasl.jaas.config", _S, "", "Credentials in the form of Kafka's clients: ScramLoginModule or PlainLoginModule with username and password, or OAuthBearerLoginModule with clientId, clientSecret and scope."),
    Setting("sasl.username", _S, "", "The user name, by librdkafka's name: in place of sasl.jaas.config."),
    Setting("sasl.password", _S, "", "The user's password, by librdkafka's name: in place of sasl.jaas.config."),
    Setting("sasl.oauthbearer.token.endpoint.url", _S, "", "With OAUTHBEARER: source of tokens. https://… gets the client's id and secret; file:///path holds a token and is read again for each connection."),
    Setting("sasl.oauthbearer.client.id", _S, "", "With OAUTHBEARER: the client's id at the token endpoint; in place of sasl.jaas.config."),
    Setting("sasl.oauthbearer.client.secret", _S, "", "With OAUTHBEARER: the client's secret at the token endpoint."),
    Setting("sasl.oauthbearer.scope", _S, "", "With OAUTHBEARER: the requested scope."),
    Setting("https.ca.location", _S, "", "PEM file of the authorities for sasl.oauthbearer.token.endpoint.url, by librdkafka's name; empty: those of the system."),
    Setting("ssl.ca.location", _S, "", "PEM file of the authorities whose brokers are trusted; empty, like ssl.truststore.*: those of the system."),
    Setting("ssl.ca.pem", _S, "", "The authorities as PEM text."),
    Setting("ssl.truststore.type", _S, "PEM", "Only PEM is supported.", choices=("PEM",)),
    Setting("ssl.truststore.location", _S, "", "As ssl.ca.location, by Kafka's name."),
    Setting("ssl.truststore.certificates", _S, "", "As ssl.ca.pem, by Kafka's name."),
    Setting("ssl.certificate.location", _S, "", "PEM file of the client's certificate and its chain, if the broker asks for one."),
    Setting("ssl.certificate.pem", _S, "", "The client's certificate as PEM text."),
    Setting("ssl.key.location", _S, "", "PEM file of the private key of the client's certificate."),
    Setting("ssl.key.pem", _S, "", "The private key as PEM text."),
    Setting("ssl.key.password", _S, "", "The password of the private key, if it has one."),
    Setting("ssl.keystore.type", _S, "PEM", "Only PEM is supported.", choices=("PEM",)),
    Setting("ssl.keystore.location", _S, "", "PEM file of the client's private key and certificate in one, by Kafka's name."),
    Setting("ssl.keystore.certificate.chain", _S, "", "As ssl.certificate.pem, by Kafka's name."),
    Setting("ssl.keystore.key", _S, "", "As ssl.key.pem, by Kafka's name."),
    Setting("ssl.endpoint.identification.algorithm", _S, "https", "With https the broker's certificate has to name the requested host. Empty: any host, so that every holder of a certificate of the same authority can impersonate the broker.", choices=("https", "", "none")),
    Setting("ssl.enabled.protocols", _S, "TLSv1.2,TLSv1.3", "Accepted versions of TLS."),
)  # fmt: skip


def settings_of(scope: Scope) -> dict[str, Setting]:
    """Return the settings of a scope by name, in the table's order.

    Args:
        scope: The component.

    Returns:
        Settings by dotted name.
    """
    return {s.name: s for s in SETTINGS if s.scope is scope}


def resolve(scope: Scope, values: Mapping[str, object]) -> dict[str, Value]:
    """Return all settings of a scope: the defaults, replaced by the given values.

    Args:
        scope: The component.
        values: Values by dotted name.

    Returns:
        Checked values by dotted name.

    Raises:
        InvalidConfigError: A setting is unknown or out of bounds.
    """
    settings = settings_of(scope)
    return {n: s.default for n, s in settings.items()} | check(scope, values)


def check(scope: Scope, values: Mapping[str, object]) -> dict[str, Value]:
    """Return the given settings parsed and checked, without the defaults.

    Args:
        scope: The component.
        values: Values by dotted name.

    Returns:
        Checked values by dotted name.

    Raises:
        InvalidConfigError: A setting is out of bounds, or unknown. For an unknown setting the message suggests a name.
    """
    settings = settings_of(scope)
    check_names(scope, values)
    return {name: settings[name].parse(value) for name, value in values.items()}


def check_names(scope: Scope, names: Iterable[str]) -> None:
    """Check that all names are settings of a scope.

    Args:
        scope: The component.
        names: Dotted names.

    Raises:
        InvalidConfigError: A name is unknown; the message suggests another one.
    """
    settings = settings_of(scope)
    for name in names:
        if name not in settings:
            import difflib  # for mistakes only

            written, near = name, settings
            if scope is Scope.BROKER:  # its configuration holds topics' defaults, too; in Kafka they begin with log.
                near = {**settings, **settings_of(Scope.TOPIC)}
                written = (
                    name if difflib.get_close_matches(str(name), settings, 1, 0.8) else str(name).removeprefix("log.")
                )
            raise InvalidConfigError(f"unknown {scope.value} setting {name!r}{did_you_mean(written, near)}")


def from_parameters(scope: Scope, values: Mapping[str, object]) -> dict[str, Value]:
    """Return all settings of a scope, like `resolve`, from Python parameters.

    Args:
        scope: The component.
        values: Values by parameter name (underscores for dots); None means not given.

    Returns:
        Checked values by dotted name.

    Raises:
        InvalidConfigError: A parameter is unknown or out of bounds.
    """
    by_parameter = {s.parameter: n for n, s in settings_of(scope).items()}
    for name in values:
        if name not in by_parameter:
            raise InvalidConfigError(f"unknown {scope.value} parameter {name!r}{did_you_mean(name, by_parameter)}")
    return resolve(scope, {by_parameter[k]: v for k, v in values.items() if v is not None})


LISTED_NAMES_MAX = 40
"""Largest number of names in the hint for an unknown name; brokers and topics have more than 150 settings."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest candidate; if none is near, up to LISTED_NAMES_MAX candidates."""
    import difflib  # for mistakes only

    names = sorted(candidates)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6) if isinstance(name, str) else []
    more = len(names) - LISTED_NAMES_MAX
    rest = f" and {more} more" if more > 0 else ""
    return f": did you mean {near[0]!r}?" if near else f" (known: {', '.join(names[:LISTED_NAMES_MAX])}{rest})"


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested TOML tables as dotted names: {"segment": {"bytes": 1}} gives {"segment.bytes": 1}."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
