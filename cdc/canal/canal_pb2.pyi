from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PacketType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PACKET_TYPE_UNKNOWN: _ClassVar[PacketType]
    HANDSHAKE: _ClassVar[PacketType]
    CLIENTAUTHENTICATION: _ClassVar[PacketType]
    ACK: _ClassVar[PacketType]
    SUBSCRIPTION: _ClassVar[PacketType]
    UNSUBSCRIPTION: _ClassVar[PacketType]
    GET: _ClassVar[PacketType]
    MESSAGES: _ClassVar[PacketType]
    CLIENTACK: _ClassVar[PacketType]
    SHUTDOWN: _ClassVar[PacketType]
    DUMP: _ClassVar[PacketType]
    HEARTBEAT: _ClassVar[PacketType]
    CLIENTROLLBACK: _ClassVar[PacketType]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_UNKNOWN: _ClassVar[Compression]
    NONE: _ClassVar[Compression]
    ZLIB: _ClassVar[Compression]
    GZIP: _ClassVar[Compression]
    LZF: _ClassVar[Compression]

class EntryType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_TYPE_UNKNOWN: _ClassVar[EntryType]
    TRANSACTIONBEGIN: _ClassVar[EntryType]
    ROWDATA: _ClassVar[EntryType]
    TRANSACTIONEND: _ClassVar[EntryType]
    ENTRY_HEARTBEAT: _ClassVar[EntryType]
    GTIDLOG: _ClassVar[EntryType]

class EventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_TYPE_UNKNOWN: _ClassVar[EventType]
    INSERT: _ClassVar[EventType]
    UPDATE: _ClassVar[EventType]
    DELETE: _ClassVar[EventType]
    CREATE: _ClassVar[EventType]
    ALTER: _ClassVar[EventType]
    ERASE: _ClassVar[EventType]
    QUERY: _ClassVar[EventType]
    TRUNCATE: _ClassVar[EventType]
    RENAME: _ClassVar[EventType]
    CINDEX: _ClassVar[EventType]
    DINDEX: _ClassVar[EventType]
    GTID: _ClassVar[EventType]
    XACOMMIT: _ClassVar[EventType]
    XAROLLBACK: _ClassVar[EventType]
    MHEARTBEAT: _ClassVar[EventType]
PACKET_TYPE_UNKNOWN: PacketType
HANDSHAKE: PacketType
CLIENTAUTHENTICATION: PacketType
ACK: PacketType
SUBSCRIPTION: PacketType
UNSUBSCRIPTION: PacketType
GET: PacketType
MESSAGES: PacketType
CLIENTACK: PacketType
SHUTDOWN: PacketType
DUMP: PacketType
HEARTBEAT: PacketType
CLIENTROLLBACK: PacketType
COMPRESSION_UNKNOWN: Compression
NONE: Compression
ZLIB: Compression
GZIP: Compression
LZF: Compression
ENTRY_TYPE_UNKNOWN: EntryType
TRANSACTIONBEGIN: EntryType
ROWDATA: EntryType
TRANSACTIONEND: EntryType
ENTRY_HEARTBEAT: EntryType
GTIDLOG: EntryType
EVENT_TYPE_UNKNOWN: EventType
INSERT: EventType
UPDATE: EventType
DELETE: EventType
CREATE: EventType
ALTER: EventType
ERASE: EventType
QUERY: EventType
TRUNCATE: EventType
RENAME: EventType
CINDEX: EventType
DINDEX: EventType
GTID: EventType
XACOMMIT: EventType
XAROLLBACK: EventType
MHEARTBEAT: EventType

class Packet(_message.Message):
    __slots__ = ("magic_number", "version", "type", "compression", "body")
    MAGIC_NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    magic_number: int
    version: int
    type: int
    compression: int
    body: bytes
    def __init__(self, magic_number: _Optional[int] = ..., version: _Optional[int] = ..., type: _Optional[int] = ..., compression: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("communication_encoding", "seeds", "supported_compressions")
    COMMUNICATION_ENCODING_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_COMPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    communication_encoding: str
    seeds: bytes
    supported_compressions: int
    def __init__(self, communication_encoding: _Optional[str] = ..., seeds: _Optional[bytes] = ..., supported_compressions: _Optional[int] = ...) -> None: ...

class ClientAuth(_message.Message):
    __slots__ = ("username", "password", "net_read_timeout", "net_write_timeout", "destination", "client_id", "filter", "start_timestamp")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    NET_READ_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    NET_WRITE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    username: str
    password: bytes
    net_read_timeout: int
    net_write_timeout: int
    destination: str
    client_id: str
    filter: str
    start_timestamp: int
    def __init__(self, username: _Optional[str] = ..., password: _Optional[bytes] = ..., net_read_timeout: _Optional[int] = ..., net_write_timeout: _Optional[int] = ..., destination: _Optional[str] = ..., client_id: _Optional[str] = ..., filter: _Optional[str] = ..., start_timestamp: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("error_code", "error_message")
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    error_code: int
    error_message: str
    def __init__(self, error_code: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class Sub(_message.Message):
    __slots__ = ("destination", "client_id", "filter")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    destination: str
    client_id: str
    filter: str
    def __init__(self, destination: _Optional[str] = ..., client_id: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class Get(_message.Message):
    __slots__ = ("destination", "client_id", "fetch_size", "timeout", "unit", "auto_ack")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    FETCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACK_FIELD_NUMBER: _ClassVar[int]
    destination: str
    client_id: str
    fetch_size: int
    timeout: int
    unit: int
    auto_ack: bool
    def __init__(self, destination: _Optional[str] = ..., client_id: _Optional[str] = ..., fetch_size: _Optional[int] = ..., timeout: _Optional[int] = ..., unit: _Optional[int] = ..., auto_ack: bool = ...) -> None: ...

class Messages(_message.Message):
    __slots__ = ("batch_id", "messages")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, batch_id: _Optional[int] = ..., messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ClientAck(_message.Message):
    __slots__ = ("destination", "client_id", "batch_id")
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    destination: str
    client_id: str
    batch_id: int
    def __init__(self, destination: _Optional[str] = ..., client_id: _Optional[str] = ..., batch_id: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("header", "entry_type", "store_value")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TYPE_FIELD_NUMBER: _ClassVar[int]
    STORE_VALUE_FIELD_NUMBER: _ClassVar[int]
    header: Header
    entry_type: EntryType
    store_value: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., entry_type: _Optional[_Union[EntryType, str]] = ..., store_value: _Optional[bytes] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("version", "logfile_name", "logfile_offset", "server_id", "serveren_code", "execute_time", "source_type", "schema_name", "table_name", "event_length", "event_type", "props", "gtid")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOGFILE_NAME_FIELD_NUMBER: _ClassVar[int]
    LOGFILE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVEREN_CODE_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    EVENT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    GTID_FIELD_NUMBER: _ClassVar[int]
    version: int
    logfile_name: str
    logfile_offset: int
    server_id: int
    serveren_code: str
    execute_time: int
    source_type: int
    schema_name: str
    table_name: str
    event_length: int
    event_type: EventType
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    gtid: str
    def __init__(self, version: _Optional[int] = ..., logfile_name: _Optional[str] = ..., logfile_offset: _Optional[int] = ..., server_id: _Optional[int] = ..., serveren_code: _Optional[str] = ..., execute_time: _Optional[int] = ..., source_type: _Optional[int] = ..., schema_name: _Optional[str] = ..., table_name: _Optional[str] = ..., event_length: _Optional[int] = ..., event_type: _Optional[_Union[EventType, str]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., gtid: _Optional[str] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class TransactionBegin(_message.Message):
    __slots__ = ("execute_time", "transaction_id", "props", "thread_id")
    EXECUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    execute_time: int
    transaction_id: str
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    thread_id: int
    def __init__(self, execute_time: _Optional[int] = ..., transaction_id: _Optional[str] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., thread_id: _Optional[int] = ...) -> None: ...

class TransactionEnd(_message.Message):
    __slots__ = ("execute_time", "transaction_id", "props")
    EXECUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    execute_time: int
    transaction_id: str
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, execute_time: _Optional[int] = ..., transaction_id: _Optional[str] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class RowChange(_message.Message):
    __slots__ = ("table_id", "event_type", "is_ddl", "sql", "row_datas", "props", "ddl_schema_name")
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    IS_DDL_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    ROW_DATAS_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    DDL_SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    event_type: EventType
    is_ddl: bool
    sql: str
    row_datas: _containers.RepeatedCompositeFieldContainer[RowData]
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    ddl_schema_name: str
    def __init__(self, table_id: _Optional[int] = ..., event_type: _Optional[_Union[EventType, str]] = ..., is_ddl: bool = ..., sql: _Optional[str] = ..., row_datas: _Optional[_Iterable[_Union[RowData, _Mapping]]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., ddl_schema_name: _Optional[str] = ...) -> None: ...

class RowData(_message.Message):
    __slots__ = ("before_columns", "after_columns", "props")
    BEFORE_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    AFTER_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    before_columns: _containers.RepeatedCompositeFieldContainer[Column]
    after_columns: _containers.RepeatedCompositeFieldContainer[Column]
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    def __init__(self, before_columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., after_columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("index", "sql_type", "name", "is_key", "updated", "is_null", "props", "value", "length", "mysql_type")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SQL_TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_KEY_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    PROPS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    MYSQL_TYPE_FIELD_NUMBER: _ClassVar[int]
    index: int
    sql_type: int
    name: str
    is_key: bool
    updated: bool
    is_null: bool
    props: _containers.RepeatedCompositeFieldContainer[Pair]
    value: str
    length: int
    mysql_type: str
    def __init__(self, index: _Optional[int] = ..., sql_type: _Optional[int] = ..., name: _Optional[str] = ..., is_key: bool = ..., updated: bool = ..., is_null: bool = ..., props: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., value: _Optional[str] = ..., length: _Optional[int] = ..., mysql_type: _Optional[str] = ...) -> None: ...
