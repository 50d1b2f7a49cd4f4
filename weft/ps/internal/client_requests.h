// The requests of a client: the memory that it shares, its links to the servers, and the tickets
// that its calls wait for.
//
// Commands to a shard have consecutive numbers. A ticket is answered when all requests that were
// sent for it are; it stays until wait() or forget(). For the thread of the client.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/ps/client.h"
#include "weft/ps/internal/client_link.h"

namespace weft::ps::internal {

class ClientRequests {
 public:
  using Ticket = Client::Ticket;
  // Called with each answer. `is_wanted`: false: it is a refusal, or its ticket was forgotten.
  using OnAnswer =
      std::function<void(const Request&, const Answer&, std::string_view payload, bool is_wanted)>;

  // Throws Error(kInvalidArgument) for the options.
  ClientRequests(ClientOptions options, OnAnswer on_answer);

  const ClientOptions& options() const { return options_; }
  Deadline patience() const { return Deadline::in(options_.timeout); }
  // Steps of this worker, as the first shard counts them.
  std::int64_t clock() const { return shards_[0].clock; }
  Moved moved() const;

  // Creates the shared memory. Before the first request.
  void share(std::size_t bytes);
  std::byte* memory() const { return memory_.data(); }
  std::uint64_t offset_of(const void* at) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - memory_.data());
  }

  Ticket open_ticket();
  // Requests with their numbers, to be sent at once.
  Request read(Op op, std::uint32_t shard);
  Outstanding command(Op op, std::uint32_t shard);
  void send(std::uint32_t shard, Outstanding request, Ticket ticket);
  // Before a command: a server drops one that comes while a pull of differences waits. The second
  // call waits for the pull that the first one names.
  void hold_commands(Ticket pull) { held_by_ = pull; }
  void await_commands() { await(held_by_, patience()); }

  bool is_answered(Ticket ticket) const;
  // Sends and receives what is possible.
  void advance();
  // Until there is something to read or write, for a short time.
  void sleep(Deadline deadline);
  // As advance(), after a sleep until there is something to do. Throws Error(kTimeout).
  void advance_by(Deadline deadline);
  // Until the ticket is answered. Throws Error(kTimeout).
  void await(Ticket ticket, Deadline deadline);
  // The error of an answered ticket, which is closed then.
  std::optional<Error> close(Ticket ticket);
  // Both. Throws the error.
  void wait(Ticket ticket, Deadline deadline);
  // Answers that come later do not count as answers to a later request.
  void forget(Ticket ticket) { tickets_.erase(ticket); }
  void fail(Ticket ticket, const Error& error) { tickets_.at(ticket).error = error; }

 private:
  struct Shard {
    std::uint64_t sequence = 0, answered = 0;  // commands
    std::int64_t clock = 0;
  };
  struct State {
    int left = 0;
    std::optional<Error> error;
  };

  void take(const Outstanding& outstanding, const Answer& answer, std::string_view payload);
  Error no_answer() const;

  std::unique_ptr<Directory> directory_;  // of the job's servers; null: the caller gave one
  const ClientOptions options_;
  const OnAnswer on_answer_;
  const std::uint64_t client_;
  net::internal::SharedMemory memory_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<ClientLink>> links_;
  std::map<Ticket, State> tickets_;
  Ticket last_ticket_ = 0, held_by_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace weft::ps::internal
