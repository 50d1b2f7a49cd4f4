#include "weft/store/server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "weft/base/log.h"
#include "weft/base/random.h"
#include "weft/store/internal/journal.h"
#include "weft/store/internal/local_clients.h"
#include "weft/store/internal/node.h"
#include "weft/store/internal/peer_links.h"

namespace weft::store {
namespace {

using internal::Message;
using internal::Node;
using internal::Time;

// Connections are looked after this often.
constexpr auto kTend = std::chrono::milliseconds(20);

Time steady_now() { return std::chrono::steady_clock::now().time_since_epoch(); }

void allow_many_descriptors() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

void make_nonblocking(const UniqueFd& fd) {
  if (fd) ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

internal::NodeOptions node_options(const ServerOptions& options) {
  internal::NodeOptions node;
  node.node = options.node;
  node.founders = options.founders;
  node.address = options.address;
  node.seed = random_number();
  return node;
}

internal::PeerOptions peer_options(ServerOptions& options) {
  internal::PeerOptions peers;
  peers.listener = net::internal::Fd(options.peers.release());
  peers.node = options.node;
  peers.address = options.address;
  peers.seeds = options.seeds;
  peers.job = options.job;
  peers.secret = options.secret;
  return peers;
}

// One thread with one poll loop around the pure Node.
class Server {
 public:
  explicit Server(ServerOptions options)
      : lifeline_(std::move(options.lifeline)),
        journal_(std::move(options.journal)),
        node_(node_options(options), load(), steady_now()),
        clients_(std::move(options.clients), client_events()),
        peers_(peer_options(options), peer_events()) {}

  void run() {
    for (;;) {
      perform(node_.take());
      tend_peers();
      internal::Polls polls;
      bool ended = false;
      polls.add(lifeline_.get(), POLLIN, [&] { ended = has_ended(); });
      clients_.watch(polls);
      peers_.watch(polls);
      polls.wait(milliseconds_to_wait());
      if (ended) return;
      node_.advance(steady_now());
    }
  }

 private:
  internal::Saved load() {
    internal::Saved saved;
    journal_.load([&](std::string_view record) { internal::replay(record, saved); });
    return saved;
  }

  internal::LocalClients::Events client_events() {
    return {[this](Node::Token token, const internal::Request& request) {
              node_.request(token, request);
            },
            [this](Node::Token token) { node_.forget(token); }};
  }

  internal::PeerLinks::Events peer_events() {
    return {[this](std::uint32_t node, const Message& message) { node_.receive(node, message); },
            [this](std::uint32_t node) { node_.connected(node); },
            [this](std::uint32_t node) { node_.disconnected(node); },
            [this](const std::string& trouble) { node_.note_trouble(trouble); }};
  }

  int milliseconds_to_wait() const {
    const Time wait = std::clamp<Time>(node_.next() - steady_now(), Time(0), kTend);
    return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
  }

  bool has_ended() const {
    char byte = 0;
    const ssize_t got = ::read(lifeline_.get(), &byte, 1);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  }

  void tend_peers() {
    if (!tend_.passed()) return;
    tend_ = Deadline::in(kTend);
    peers_.want(node_.peers(), !node_.is_member());
    peers_.tend();
  }

  // The journal first: nothing is sent or answered that a new process would not know.
  void perform(const Node::Output& output) {
    if (output.restart_journal) {
      journal_.restart(output.records);
    } else if (!output.records.empty()) {
      journal_.append(output.records);
    }
    for (const auto& [node, message] : output.messages) peers_.send(node, message);
    for (const auto& [token, response] : output.answers) clients_.answer(token, response);
    for (const std::string& note : output.notes) log_debug(note);
  }

  const UniqueFd lifeline_;
  internal::Journal journal_;
  Node node_;
  internal::LocalClients clients_;
  internal::PeerLinks peers_;
  Deadline tend_ = Deadline::in(Time(0));
};

}  // namespace

void serve(ServerOptions options) {
  WEFT_REQUIRE(!options.peers || !options.address.empty(),
               "a store process with peers needs the address at which they reach it");
  allow_many_descriptors();
  for (const UniqueFd* fd : {&options.clients, &options.peers, &options.lifeline})
    make_nonblocking(*fd);
  Server(std::move(options)).run();
}

}  // namespace weft::store
