// Bytes on the wire: messages between nodes, requests of clients, and streams of them.
#include "weft/store/internal/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "weft/base/testing/refusal.h"
#include "weft/store/internal/message_stream.h"
#include "weft/store/request.h"
#include "weft/store/status.h"

namespace weft::store {
namespace message_test {

using namespace internal;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Message whole_message() {
  Message message;
  message.type = Message::Type::kAppendReply;
  message.cluster = 1;
  message.from = 2;
  message.to = 3;
  message.term = 4;
  message.index = 5;
  message.log_term = 6;
  message.commit = 7;
  message.round = 8;
  message.offset = 9;
  message.total = 10;
  message.accepted = true;
  message.entries = {{1, LogEntry::Kind::kCommand, "command"}, {2, LogEntry::Kind::kNothing, ""}};
  message.data = std::string("\0data", 5);
  message.members = {{1, 2, 3, "host:4"}};
  return message;
}

// Every first part of the bytes, and the bytes with one more, are refused.
template <typename Decode>
void expect_exact(const std::string& bytes, const Decode& decode) {
  for (std::size_t size = 0; size < bytes.size(); ++size)
    expect_refused([&] { decode(bytes.substr(0, size)); }, Errc::kCorrupt, "malformed");
  expect_refused([&] { decode(bytes + "x"); }, Errc::kCorrupt, "malformed");
}

TEST(StoreWire, KeepsEveryFieldAndRefusesAnyOtherLength) {
  const Message message = whole_message();
  EXPECT_EQ(decode_message(encode(message)), message);
  expect_exact(encode(message), [](const std::string& bytes) { decode_message(bytes); });

  const Request request{Op::kAdd, 1, 2, "key", "value", 3, 4, -5, 6};
  EXPECT_EQ(decode_request(encode(request)), request);
  expect_exact(encode(request), [](const std::string& bytes) { decode_request(bytes); });

  Response response{Status::kNotDone, 1, 2, -3, Value{"v", 4}, {{"k", {"v", 5}}}, "text"};
  EXPECT_EQ(decode_response(encode(response)), response);
  expect_exact(encode(response), [](const std::string& bytes) { decode_response(bytes); });

  const Greeting greeting{Greeting::kVersion, 3, "host:1"};
  EXPECT_EQ(decode_greeting(encode(greeting)), greeting);
  expect_exact(encode(greeting), [](const std::string& bytes) { decode_greeting(bytes); });

  const StoreStatus status{1, 2, 3, {4, 5}, {6}, 7};
  EXPECT_EQ(decode_status(encode(status)), status);
  expect_exact(encode(status), [](const std::string& bytes) { decode_status(bytes); });
}

TEST(StoreWire, TellsTheVersionOfAGreetingThatItCannotRead) {
  Greeting greeting{Greeting::kVersion + 1, 3, "host:1"};
  EXPECT_EQ(decode_greeting(encode(greeting) + "more").version, Greeting::kVersion + 1);
}

struct Ends {
  Ends(std::size_t max) {
    int fds[2];
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds);
    a.emplace(UniqueFd(fds[0]), max);
    b.emplace(UniqueFd(fds[1]), max);
  }
  std::optional<MessageStream> a, b;
};

TEST(StoreMessageStream, CarriesMessagesOfAnySize) {
  Ends ends(10 << 20);
  const std::string large(5'000'000, 'x');
  for (const std::string& message : {std::string("one"), std::string(), large})
    ends.a->send(message);
  std::vector<std::string> got;
  while (got.size() < 3) {
    ASSERT_TRUE(ends.a->flush());
    ASSERT_TRUE(ends.b->receive(got));
  }
  EXPECT_THAT(got, ElementsAre("one", "", large));
  EXPECT_EQ(ends.a->queued(), 0u);
}

TEST(StoreMessageStream, NoticesTheEndOfItsPeer) {
  Ends ends(100);
  ends.b.reset();
  std::vector<std::string> got;
  EXPECT_FALSE(ends.a->receive(got));
  ends.a->send("lost");
  EXPECT_FALSE(ends.a->flush());
}

TEST(StoreMessageStream, RefusesLongMessagesAndForeignBytes) {
  Ends ends(100);
  ends.a->send(std::string(101, 'x'));
  ends.a->flush();
  std::vector<std::string> got;
  expect_refused([&] { ends.b->receive(got); }, Errc::kCorrupt, "does not belong");
  Ends others(100);
  const std::string http = "GET / HTTP/1.1\r\n" + std::string(200, 'x');
  ::send(others.a->fd(), http.data(), http.size(), MSG_NOSIGNAL);
  expect_refused([&] { others.b->receive(got); }, Errc::kCorrupt, "");
  EXPECT_THAT(got, IsEmpty());
}

}  // namespace message_test
}  // namespace weft::store
