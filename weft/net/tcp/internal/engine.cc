#include "weft/net/tcp/internal/engine.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "weft/net/internal/failure.h"

namespace weft::net::internal {
namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};

}  // namespace

Engine::Engine(const EngineOptions& options, Mesh mesh)
    : options_(options),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      mailbox_(options.rank, static_cast<int>(mesh.size()), options.room),
      calls_(options.rank, static_cast<int>(mesh.size())) {
  if (!epoll_ || !wake_)
    throw Error(Errc::kUnavailable, "cannot create descriptors: " + errno_text(errno));
  epoll_event event{EPOLLIN, {.u64 = kWakeTag}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  const PeerConnection::Shared shared{options_, static_cast<int>(mesh.size()), epoll_.get(),
                                      mailbox_, calls_};
  peers_.reserve(mesh.size());
  for (std::vector<Fd>& sockets : mesh)
    peers_.emplace_back(shared, static_cast<int>(peers_.size()), std::move(sockets));
}

void Engine::wake() const {
  const std::uint64_t one = 1;
  // If the counter is full, a wake-up is pending already.
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof(one));
}

void Engine::handle(std::uint64_t tag, std::uint32_t events) {
  if (stopped_) return;
  if (tag == kWakeTag) {
    std::uint64_t count;
    [[maybe_unused]] const auto n = ::read(wake_.get(), &count, sizeof(count));
    return;
  }
  peers_[PeerConnection::peer_of(tag)].handle(tag, events);
}

void Engine::send(Outgoing& message) {
  PeerConnection& to = peers_[message.send.peer];
  message.number = to.next_number(message.channel);
  if (message.send.peer != options_.rank) return to.send(message);
  ++message.operation->pending;
  deliver_to_self(message);
}

void Engine::deliver_to_self(Outgoing& message) {
  const auto bytes = message.send.bytes;
  const Piece piece{options_.rank, message.channel,       message.number, bytes.size(), 0,
                    bytes.size(),  label_of(message.send)};
  std::byte* place = mailbox_.begin(piece);
  if (!bytes.empty()) std::memcpy(place, bytes.data(), bytes.size());
  mailbox_.end(piece);
  message.begun = true;
  message.next = bytes.size();
  message.operation->complete(message.id);
}

void Engine::post(Channel channel, Receipt& receipt) {
  mailbox_.post(channel, receipt);
  peers_[receipt.recv.peer].resume();
}

bool Engine::wait_for(int peer, bool begin) {
  mailbox_.wait_for(peer, begin);
  bool resumed = false;
  for (int other = 0; begin && other < world(); ++other)
    if (peer < 0 || peer == other) resumed |= peers_[other].resume();
  return resumed;
}

void Engine::tick(Clock::time_point now) {
  for (const int peer : options_.found_lost ? options_.found_lost() : std::vector<int>()) {
    if (peer >= 0 && peer < world() && peer != options_.rank)
      peers_[peer].give_up("its node is lost or cannot be reached");
  }
  for (PeerConnection& peer : peers_) peer.tick(now);
  for (const Calls::Shown& call : calls_.due()) {
    const Header header{.type = FrameType::kCall,
                        .channel = call.channel,
                        .message = call.number,
                        .label = call.label};
    for (PeerConnection& peer : peers_) peer.say(header);
  }
}

void Engine::stop() {
  stopped_ = true;
  for (PeerConnection& peer : peers_) peer.stop();
}

void Engine::tell(const Abort& abort) {
  for (PeerConnection& peer : peers_) peer.say({.type = FrameType::kAbort}, encode(abort));
}

void Engine::tell_rest() {
  for (PeerConnection& peer : peers_) peer.say_rest();
}

void Engine::leave(Deadline deadline) {
  for (PeerConnection& peer : peers_) peer.say({.type = FrameType::kGoodbye});
  stop();
  const auto all_sent = [&] {
    bool sent = true;
    for (PeerConnection& peer : peers_) sent = peer.all_sent() && sent;
    return sent;
  };
  while (!all_sent() && !deadline.passed()) ::poll(nullptr, 0, 1);
}

}  // namespace weft::net::internal
