// For tests: a rank that waits for its peer under foreign connections, misbehaving sockets, and a
// proxy that damages data.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>

#include "weft/net/tcp/frame.h"
#include "weft/net/tcp/socket.h"
#include "weft/net/testing/ranks.h"

namespace weft::net::internal {

inline std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

inline std::array<std::byte, 32> secret_of(char c) {
  std::array<std::byte, 32> secret;
  secret.fill(static_cast<std::byte>(c));
  return secret;
}

// A raw, misbehaving connection to "host:port".
class Stranger {
 public:
  explicit Stranger(const std::string& address) : fd_(begin_connect(address)) {
    ready(POLLOUT, 5000);
  }

  bool send(std::span<const std::byte> bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool send(const std::string& text) { return send(std::as_bytes(std::span(text))); }
  // Reads exactly this much. Returns false if the other side closed first.
  bool receive(std::span<std::byte> bytes) {
    for (std::size_t have = 0; have < bytes.size();) {
      if (!ready(POLLIN, 5000)) return false;
      const auto n = ::recv(fd_.get(), bytes.data() + have, bytes.size() - have, 0);
      if (n <= 0) return false;
      have += static_cast<std::size_t>(n);
    }
    return true;
  }
  // True if the other side closes within the time, whatever it sends before.
  bool closed_within(int ms) {
    std::array<std::byte, 4096> scratch;
    while (ready(POLLIN, ms)) {
      if (::recv(fd_.get(), scratch.data(), scratch.size(), 0) <= 0) return true;
    }
    return false;
  }

 private:
  bool ready(short events, int ms) const {
    pollfd fd{fd_.get(), events, 0};
    return ::poll(&fd, 1, ms) > 0;
  }
  Fd fd_;
};

// Rank 0 of 2, in its own thread, waiting for rank 1.
class AttackedGroup {
 public:
  explicit AttackedGroup(TcpOptions options) : options_(std::move(options)) {
    options_.rank = 0;
    options_.world = 2;
    auto published = published_.get_future();
    TcpOptions mine = options_;
    mine.on_refused = [this](const std::string& line) { refused_.push_back(line); };
    mine.exchange = [this](const std::string& address) {
      published_.set_value(address);
      return std::vector<std::string>{address, ""};  // rank 0 does not dial
    };
    endpoint_ = std::async(std::launch::async, [mine] { return connect_tcp(mine); });
    address_ = published.get();
  }

  const std::string& address() const { return address_; }

  // Connects as rank 1 with these options, to rank 0 or to `address` instead.
  std::unique_ptr<Endpoint> join(TcpOptions options, const std::string& address) const {
    options.rank = 1;
    options.world = 2;
    options.exchange = [&](const std::string& mine) {
      return std::vector<std::string>{address, mine};
    };
    return connect_tcp(options);
  }
  // Connects the real rank 1. Returns both endpoints.
  Group complete(const std::string& by = "") {
    Group group(2);
    group[1] = join(options_, by.empty() ? address_ : by);
    group[0] = endpoint_.get();
    return group;
  }
  // No rank connects any more: waits until rank 0 ends by its connect timeout.
  Error abandon() {
    try {
      endpoint_.get();
    } catch (const Error& error) {
      return error;
    }
    return Error(Errc::kInternal, "no error was thrown");
  }
  // Call it after complete().
  const std::vector<std::string>& refused() const { return refused_; }

 private:
  TcpOptions options_;
  std::promise<std::string> published_;
  std::future<std::unique_ptr<Endpoint>> endpoint_;
  std::string address_;
  std::vector<std::string> refused_;
};

// Forwards connections to `target`, and damages them on request.
class Proxy {
 public:
  explicit Proxy(std::string target)
      : target_(std::move(target)),
        listener_(listen_on("127.0.0.1", 0)),
        thread_([this] { run(); }) {}
  ~Proxy() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return join_address("127.0.0.1", bound_port(listener_)); }

  // Flips a bit of byte `at` (from the end if negative) of the next piece to the target that is
  // longer than a frame header.
  void flip(int at) { flip_at_ = at; }
  // Closes connection `index`, in the order of arrival; all if it is negative.
  void cut(int index) { cut_ = index; }
  int flipped() const { return flipped_; }

 private:
  static constexpr int kNone = 1 << 30;
  struct Pair {
    Fd near, far;
  };

  void run() {
    std::vector<Pair> pairs;
    while (!stop_) {
      const int cut = cut_.exchange(kNone);
      for (int i = 0; i < static_cast<int>(pairs.size()) && cut != kNone; ++i) {
        if (cut < 0 || cut == i) pairs[static_cast<std::size_t>(i)] = Pair{};
      }
      std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs) {
        fds.push_back({pair.near.get(), POLLIN, 0});
        fds.push_back({pair.far.get(), POLLIN, 0});
      }
      ::poll(fds.data(), fds.size(), 2);
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        const bool up = fds[1 + 2 * i].revents == 0 || pass(pairs[i].near, pairs[i].far, true);
        const bool down = fds[2 + 2 * i].revents == 0 || pass(pairs[i].far, pairs[i].near, false);
        if (!up || !down) pairs[i] = Pair{};
      }
      std::string from;
      int error = 0;
      if (Fd near = accept_on(listener_, from, error)) {
        Fd far = begin_connect(target_);
        pollfd ready{far.get(), POLLOUT, 0};
        ::poll(&ready, 1, 1000);
        pairs.push_back({std::move(near), std::move(far)});
      }
    }
  }

  bool pass(const Fd& from, const Fd& to, bool toward_target) {
    std::array<std::byte, 64 * 1024> bytes;
    const auto n = ::recv(from.get(), bytes.data(), bytes.size(), 0);
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    if (toward_target && n > static_cast<ssize_t>(kHeaderBytes)) {
      if (const int at = flip_at_.exchange(kNone); at != kNone) {
        bytes[static_cast<std::size_t>(at < 0 ? n + at : at)] ^= std::byte{4};
        ++flipped_;
      }
    }
    for (ssize_t sent = 0; sent < n;) {
      const auto m =
          ::send(to.get(), bytes.data() + sent, static_cast<std::size_t>(n - sent), MSG_NOSIGNAL);
      if (m < 0 && errno != EAGAIN) return false;
      sent += std::max<ssize_t>(m, 0);
    }
    return true;
  }

  const std::string target_;
  const Fd listener_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> flip_at_ = kNone, cut_ = kNone, flipped_ = 0;
  std::thread thread_;
};

}  // namespace weft::net::internal
