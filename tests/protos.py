"""Events in Protobuf: a `.proto` file, and messages made by protobuf's own classes."""

EVENT = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Event {
  string type = 1;
  google.protobuf.Timestamp ts = 2;
  string user_id = 3;
  string request_id = 4;
  string item_id = 5;
  string feedback = 6;
  optional double value = 7;
  repeated string items = 8;
}
"""


def descriptors(text, others):
    """The files that protoc makes of a text, by name; imports come first."""
    from streameval.profiles.protobuf import _compile

    return {each.name: each for each in _compile(text, others)}


def classes(text, others):
    """The classes of all messages of a text and of what it imports, by name."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClassesForFiles

    files, pool = descriptors(text, others), DescriptorPool()
    for each in files.values():
        pool.Add(each)
    return GetMessageClassesForFiles(list(files), pool)


def message(kind, event):
    """A message with the fields of an event."""
    made = kind()
    for name, value in event.items():
        if name == "ts":
            made.ts.FromMilliseconds(value)
        elif name == "items":
            made.items.extend(value)
        else:
            setattr(made, name, value)
    return made
