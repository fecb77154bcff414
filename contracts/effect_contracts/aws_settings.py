"""The settings of the adapters `sqs` and `s3`: where the queue or bucket is, and whose keys sign.

Queue, bucket, endpoint, region and owner are fixed by the document. The downstream key has its
place by the service's own rules: the deduplication id of a message, the metadata of an object.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from effect_contracts.expressions import HeaderPrefix, SecretReference, UrlTemplate, url_variables
from effect_contracts.http_settings import JsonBody, TextBody
from effect_contracts.section import Section


def _fixed(url: str) -> str:
    if url_variables(url) or "?" in url:
        raise ValueError("this URL is fixed: no {…} and no query in it")
    return url


FixedUrl = Annotated[UrlTemplate, AfterValidator(_fixed)]
Region = Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]{1,2}$")]
MessageBody = Annotated[JsonBody | TextBody, Field(discriminator="kind")]


class AwsCredentials(Section):
    """Whose keys sign; nothing is ever taken from the environment, a profile or the machine.

    Attributes:
        session_token: of temporary credentials; whoever hands them out renews what the reference
            resolves to.
    """

    access_key_id: SecretReference
    secret_access_key: SecretReference
    session_token: SecretReference | None = None


class SqsSettings(Section):
    """A FIFO queue. The downstream key is the MessageDeduplicationId.

    Attributes:
        queue_url: as AWS gives it; it names the account, and ends with `.fifo`.
        group: the MessageGroupId, with `{name}` expressions over the arguments.
        body: the message.
    """

    kind: Literal["sqs"]
    queue_url: FixedUrl
    region: Region
    credentials: AwsCredentials
    group: Annotated[HeaderPrefix, Field(min_length=1)]
    body: MessageBody = JsonBody(kind="json")


class S3Settings(Section):
    """An object that is created if its name is free. The downstream key is in its metadata.

    Attributes:
        bucket: its owner is the contract's account, and S3 refuses another's.
        endpoint: scheme, host and port of another place than AWS's own; the bucket is then the
            first part of the path.
        object: the object's name, with expressions over the arguments and `{key}` as in the path of
            a URL.
        body: the object.
    """

    kind: Literal["s3"]
    bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    region: Region
    endpoint: FixedUrl | None = None
    credentials: AwsCredentials
    object: Annotated[str, Field(min_length=1, max_length=900, pattern=r"^[^/?#][^?#]*$")]
    body: MessageBody = JsonBody(kind="json")

    def url_template(self) -> str:
        """Return the URL of the object, its expressions unfilled."""
        if self.endpoint is not None:
            return f"{self.endpoint.rstrip('/')}/{self.bucket}/{self.object}"
        return f"https://{self.bucket}.s3.{self.region}.amazonaws.com/{self.object}"
