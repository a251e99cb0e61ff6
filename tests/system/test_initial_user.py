"""The user that a cluster begins with (`sasl.scram.initial.credentials`): a new password, another one, none."""

from __future__ import annotations

from pathlib import Path

import pytest

import sparklog
from sparklog.client.net.cluster import forget
from sparklog.errors import InvalidConfigError, ResourceNotFoundError, SaslAuthenticationFailedError
from sparklog.security.client_security import read_client_file
from sparklog.security.secrets import Secret
from tests.secure_broker import SecureBroker


def first_password(broker: SecureBroker) -> str:
    return str(read_client_file(broker.security).security.resolve().password.reveal())


def get_in(broker: SecureBroker, password: str, name: str = "admin") -> list[str]:
    """The users' names, asked for by this one."""
    forget(broker.address)
    with sparklog.Admin(broker.address, security=broker.user_security(name, password)) as admin:
        return [user.name for user in admin.describe_users()]


def test_its_password_is_changed_and_it_is_gone_when_it_is_removed(tmp_path: Path) -> None:
    """The configuration's password, which is an old one then, is refused."""
    with SecureBroker(tmp_path) as broker:
        first = first_password(broker)
        assert get_in(broker, first) == ["admin"]
        with broker.admin() as admin:
            with pytest.raises(InvalidConfigError, match="user 'admin' already exists"):
                admin.set_user_password("admin", Secret("second"), only_new=True)
            admin.set_user_password("admin", Secret("second"), only_existing=True)
        assert get_in(broker, "second") == ["admin"]
        with pytest.raises(SaslAuthenticationFailedError):
            get_in(broker, first)
        with (
            sparklog.Admin(broker.address, security=broker.user_security("admin", "second")) as admin,
            pytest.raises(SaslAuthenticationFailedError),  # its own connection ends, too
        ):
            admin.remove_user("admin")
        for _ in range(2):  # before and after a restart
            for password in (first, "second"):
                with pytest.raises(SaslAuthenticationFailedError):
                    get_in(broker, password)
            broker.stop()
            broker.start()


def test_it_can_be_removed_at_once_and_created_again(tmp_path: Path) -> None:
    with SecureBroker(tmp_path) as broker:
        first = first_password(broker)
        broker.add_user("helper", "helps")
        config = tmp_path / "secure" / "broker.toml"
        config.write_text(config.read_text().replace('"User:admin;', '"User:helper;User:admin;'))
        broker.stop()
        broker.start()
        with sparklog.Admin(broker.address, security=broker.user_security("helper", "helps")) as admin:
            admin.remove_user("admin")
            with pytest.raises(ResourceNotFoundError):
                admin.remove_user("admin")
            with pytest.raises(SaslAuthenticationFailedError):
                get_in(broker, first)
            admin.set_user_password("admin", Secret("again"), only_new=True)
        assert get_in(broker, "again") == ["admin", "helper"]
