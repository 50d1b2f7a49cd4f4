// Calls of a client whose store process does not serve it.
#include "weft/store/client.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/net/stream/local_socket.h"

namespace weft::store {
namespace client_test {

using namespace std::chrono_literals;

// Accepts each connection and closes it at once.
class ClosingServer {
 public:
  ClosingServer() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

  const std::string& socket() const { return listener_.name; }
  int accepted() const { return accepted_; }

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd ready{listener_.fd.get(), POLLIN, 0};
      ::poll(&ready, 1, 5);
      if (UniqueFd(::accept(listener_.fd.get(), nullptr, nullptr))) ++accepted_;
    }
  }

  const LocalListener listener_ = listen_locally();
  std::atomic<int> accepted_ = 0;
  std::jthread thread_;
};

TEST(Client, EndsACallAtItsDeadlineIfTheStoreProcessClosesItsConnections) {
  const ClosingServer server;
  Client client(server.socket());
  expect_refused([&] { client.get("key", Deadline::in(100ms)); }, Errc::kTimeout,
                 "did not answer before the deadline: it closes the connection");
  // Two at once, then one every 10 ms.
  EXPECT_GT(server.accepted(), 1);
  EXPECT_LE(server.accepted(), 13);
}

TEST(Client, SaysThatTheQueueOfTheSocketIsFull) {
  const LocalListener listener = listen_locally();
  ASSERT_EQ(::listen(listener.fd.get(), 0), 0);
  std::vector<UniqueFd> waiting;  // until the queue is full
  do {
    waiting.push_back(net::internal::connect_locally(listener.name));
  } while (waiting.back());
  Client client(listener.name);
  expect_refused([&] { client.get("key", Deadline::in(30ms)); }, Errc::kTimeout,
                 "the queue of its socket is full");
}

}  // namespace client_test
}  // namespace weft::store
