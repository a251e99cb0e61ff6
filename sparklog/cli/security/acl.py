"""`sparklog acl`: adds, lists and removes ACLs, with the options of `kafka-acls`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from sparklog.cli import completion
from sparklog.cli.option_groups import with_groups
from sparklog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, open_admin
from sparklog.errors import SparklogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparklog.security.acl_records import AclFilter
    from sparklog.security.acls import Acl, Operation, Permission, ResourceType
    from sparklog.security.acls import PatternType as AclPattern
    from sparklog.security.principals import Principal

    AclTarget = tuple[ResourceType, str]

app = typer.Typer(
    no_args_is_help=True,
    help="Add, list and remove ACLs, the rights of principals.",
    epilog="""\
**Examples**

`sparklog acl add --allow-principal User:loader --producer --topic trips`

`sparklog acl add --allow-principal User:report --consumer --topic trips --group report`

`sparklog acl add --allow-principal User:report --operation Read --topic trips- --resource-pattern-type prefixed`

`sparklog acl list --topic trips --resource-pattern-type match`

Brokers enforce ACLs with `authorizer = "acl"` in their configuration. Everything that no ACL allows is denied, except to
`super.users`.
""",
)

Operations = Annotated[
    list[str] | None,
    typer.Option(
        metavar="OPERATION",
        help="All (default), Read, Write, Create, Delete, Alter, Describe, ClusterAction, DescribeConfigs, "
        "AlterConfigs, IdempotentWrite; repeatable.",
    ),
]


class Subjects(NamedTuple):
    """The options that name principals and hosts."""

    allow_principal: Annotated[
        list[str] | None, typer.Option(metavar="User:NAME", help="Principal that is allowed; repeatable.")
    ] = None
    deny_principal: Annotated[
        list[str] | None,
        typer.Option(metavar="User:NAME", help="Principal that is denied, even if another ACL allows it; repeatable."),
    ] = None
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Address of allowed clients (default: any); repeatable.")
    ] = None
    deny_host: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Address of denied clients (default: any); repeatable.")
    ] = None

    def named(self, *, new: bool) -> list[tuple[Permission, Principal, str]]:
        """Return permission, principal and host of the ACLs. `new` refuses principals whose names no user can have.
        Raises InvalidConfigError, and typer.BadParameter for hosts without a principal."""
        from sparklog.security.acls import ANY_NAME, Permission, canonical_host
        from sparklog.security.principals import parse_principal, stored_principal

        subjects = []
        for permission, principals, hosts in (
            (Permission.ALLOW, self.allow_principal, self.allow_host),
            (Permission.DENY, self.deny_principal, self.deny_host),
        ):
            if hosts and not principals:
                word = permission.value.lower()
                raise typer.BadParameter(f"--{word}-host needs --{word}-principal")
            for text in principals or []:
                principal = parse_principal(text, wildcard=True) if new else stored_principal(text)
                subjects += [(permission, principal, canonical_host(host)) for host in hosts or [ANY_NAME]]
        return subjects


class Resources(NamedTuple):
    """The options that name resources."""

    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME", help="A topic; * is all; repeatable.", autocompletion=completion.topics
        ),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME", help="A consumer group; repeatable.", autocompletion=completion.groups),
    ] = None
    transactional_id: Annotated[
        list[str] | None,
        typer.Option(
            "--transactional-id",
            metavar="ID",
            help="A transactional id, or the name of an application (a Spark query); repeatable.",
            autocompletion=completion.transactional_ids,
        ),
    ] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster itself.")] = False
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user", "--user-principal", metavar="NAME", help="A user, as the object of a change; repeatable."
        ),
    ] = None
    resource_pattern_type: Annotated[
        str,
        typer.Option(
            "--resource-pattern-type",
            metavar="TYPE",
            help="literal (the name itself), prefixed (every name with this beginning); to list and remove also match (all "
            "that concern this name) and any.",
        ),
    ] = "literal"

    def named(self, *, needed: bool = True) -> list[AclTarget]:
        """Return the resources. Raises typer.BadParameter if none is given, unless `needed` is False."""
        from sparklog.security.acls import CLUSTER, ResourceType

        options = (
            (ResourceType.TOPIC, self.topic),
            (ResourceType.GROUP, self.group),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
            (ResourceType.USER, self.user),
        )
        resources: list[AclTarget] = [(kind, name) for kind, names in options for name in names or []]
        if self.cluster:
            resources.append((CLUSTER.resource_type, CLUSTER.name))
        if needed and not resources:
            raise typer.BadParameter("name a resource: --topic, --group, --transactional-id, --cluster or --user")
        return resources


class Roles(NamedTuple):
    """The options that stand for all rights of a producer or a consumer."""

    producer: Annotated[
        bool,
        typer.Option(
            "--producer",
            help="All rights of a producer: Write, Describe and Create for --topic, and Write and Describe for "
            "--transactional-id.",
        ),
    ] = False
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="With --producer: also IdempotentWrite on the cluster.")
    ] = False
    consumer: Annotated[
        bool,
        typer.Option(
            "--consumer", help="All rights of a consumer: Read and Describe for --topic, and Read for --group."
        ),
    ] = False


NO_SUBJECTS, NO_RESOURCES, NO_ROLES = Subjects(), Resources(), Roles()
ANY_PATTERN = Resources(resource_pattern_type="any")


@app.command("add")
@with_groups
def add(
    subject: Subjects = NO_SUBJECTS,
    operation: Operations = None,
    resource: Resources = NO_RESOURCES,
    roles: Roles = NO_ROLES,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Allow or deny operations."""
    from sparklog.security.acl_records import parse_choice
    from sparklog.security.acls import Acl, PatternType, check_acl

    resources = resource.named()
    subjects = subject.named(new=True)
    if not subjects:
        raise typer.BadParameter("name a principal: --allow-principal User:NAME or --deny-principal User:NAME")
    pattern = parse_choice(PatternType, resource.resource_pattern_type, "--resource-pattern-type")
    targets = _operations(resources, operation, roles)
    acls = [
        check_acl(Acl(kind, _pattern_of(kind, pattern), name, acl_principal, host, acl_operation, permission))
        for (kind, name), acl_operation in targets
        for permission, acl_principal, host in subjects
    ]
    with open_admin(bootstrap_servers) as admin:
        new = admin.create_acls(acls)
    for acl in sorted(set(acls)):
        print(_line(acl))
    print(f"{new} added, {len(set(acls)) - new} existed already")


@app.command("list")
@with_groups
def list_acls(
    principal: Annotated[
        list[str] | None, typer.Option(metavar="User:NAME", help="Only ACLs of this principal; repeatable.")
    ] = None,
    operation: Operations = None,
    resource: Resources = ANY_PATTERN,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List all ACLs, or those of some resources or principals."""
    import sys

    from sparklog.security.acl_records import parse_choice
    from sparklog.security.acls import Operation
    from sparklog.security.principals import stored_principal

    resources = resource.named(needed=False)
    principals = set(map(stored_principal, principal or []))
    operations = {parse_choice(Operation, text, "operation") for text in operation or []}
    with open_admin(bootstrap_servers) as admin:
        pattern_type = resource.resource_pattern_type
        filters = [_filter(r, pattern_type) for r in resources] or [_filter(None, pattern_type)]
        acls = {acl for acl_filter in filters for acl in admin.describe_acls(acl_filter)}
    shown = sorted(
        acl
        for acl in acls
        if (not principals or acl.principal in principals) and (not operations or acl.operation in operations)
    )
    if not shown:
        print("no such ACLs", file=sys.stderr)
        return
    from sparklog.cli import console

    table = console.table("resource", "pattern", "name", "principal", "permission", "operation", "host")
    for acl in shown:
        table.add_row(
            acl.resource_type, acl.pattern_type, acl.name, str(acl.principal), acl.permission, acl.operation, acl.host
        )
    console.stdout().print(table)


@app.command("remove")
@with_groups
def remove(
    subject: Subjects = NO_SUBJECTS,
    operation: Operations = None,
    resource: Resources = NO_RESOURCES,
    roles: Roles = NO_ROLES,
    yes: Annotated[bool, typer.Option("--yes", "-y", "--force", help="Do not ask for confirmation.")] = False,
    bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove the ACLs of the named resources: all, or those of the named principals."""
    import sys

    resources = resource.named()
    named = subject.named(new=False)
    subjects: Sequence[tuple[Permission | None, Principal | None, str | None]] = named or [(None, None, None)]
    targets: list[tuple[AclTarget, Operation | None]]
    if operation or any(roles):
        targets = list(_operations(resources, operation, roles))
    else:
        targets = [(r, None) for r in resources]
    filters = [
        _filter(r, resource.resource_pattern_type)._replace(
            principal=acl_principal,
            permission=permission,
            operation=acl_operation,
            host=host if subject.allow_host or subject.deny_host else None,
        )
        for r, acl_operation in targets
        for permission, acl_principal, host in subjects
    ]
    with open_admin(bootstrap_servers) as admin:
        acls = sorted({acl for f in filters for acl in admin.describe_acls(f)})
        if not acls:
            print("no such ACLs", file=sys.stderr)
            return
        for acl in acls:
            print(_line(acl))
        if not yes:
            typer.confirm(f"remove {len(acls)} ACLs?", abort=True)
        removed: set[Acl] = set()
        try:
            for start in range(0, len(filters), _FILTERS_AT_ONCE):
                removed.update(admin.delete_acls(*filters[start : start + _FILTERS_AT_ONCE]))
        except SparklogError as e:
            removed.update(e.outcomes or ())
            print(f"{len(removed)} removed before the failure:", file=sys.stderr)
            for acl in sorted(removed):
                print(f"  {_line(acl)}", file=sys.stderr)
            raise
    print(f"{len(removed)} removed")


_FILTERS_AT_ONCE = 100


def _operations(resources: list[AclTarget], texts: list[str] | None, roles: Roles) -> list[tuple[AclTarget, Operation]]:
    """Return pairs of resource and operation, of `--operation` or of `--producer`, `--consumer` and `--idempotent`.
    Raises typer.BadParameter, InvalidConfigError."""
    from sparklog.security.acl_records import parse_choice
    from sparklog.security.acls import CLUSTER, Operation, ResourceType

    if not (roles.producer or roles.consumer):
        if roles.idempotent:
            raise typer.BadParameter("--idempotent belongs to --producer")
        operations = [parse_choice(Operation, text, "operation") for text in texts or [Operation.ALL]]
        return [(resource, operation) for resource in resources for operation in operations]
    if texts:
        raise typer.BadParameter("--producer and --consumer imply the operations: leave --operation out")
    kinds = {kind for kind, _ in resources}
    if ResourceType.TOPIC not in kinds or (roles.consumer and ResourceType.GROUP not in kinds):
        raise typer.BadParameter("--producer needs --topic, --consumer needs --topic and --group")
    needs: dict[ResourceType, set[Operation]] = {kind: set() for kind in ResourceType}
    if roles.producer:
        needs[ResourceType.TOPIC] |= {Operation.WRITE, Operation.DESCRIBE, Operation.CREATE}
        needs[ResourceType.TRANSACTIONAL_ID] |= {Operation.WRITE, Operation.DESCRIBE}
    if roles.consumer:
        needs[ResourceType.TOPIC] |= {Operation.READ, Operation.DESCRIBE}
        needs[ResourceType.GROUP] |= {Operation.READ}
    useless = [name for kind, name in resources if not needs[kind]]
    if useless:
        raise typer.BadParameter(f"{useless[0]!r}: --producer covers topics and transactional ids, --consumer "
                                 "topics and groups")  # fmt: skip
    implied = [(resource, operation) for resource in resources for operation in sorted(needs[resource[0]])]
    if roles.idempotent:
        implied.append(((CLUSTER.resource_type, CLUSTER.name), Operation.IDEMPOTENT_WRITE))
    return implied


def _pattern_of(kind: ResourceType, pattern: str) -> AclPattern:
    """Return the pattern type of a resource; always literal for the cluster, which has one name."""
    from sparklog.security.acls import PatternType, ResourceType

    return PatternType.LITERAL if kind is ResourceType.CLUSTER else PatternType(pattern)


def _filter(resource: AclTarget | None, pattern_type: str) -> AclFilter:
    from sparklog.security.acl_records import filter_from_texts

    kind, name = resource if resource is not None else (None, None)
    return filter_from_texts(kind, pattern_type, name, None, None, None, None)


def _line(acl: Acl) -> str:
    return (
        f"{acl.permission} {acl.principal} {acl.operation} on {acl.pattern_type} {acl.resource_type} {acl.name!r} "
        f"from {'any host' if acl.host == '*' else acl.host}"
    )
