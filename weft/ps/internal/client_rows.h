// The rows of embedding tables in a client. A call is divided by the shards of its keys, and into
// requests of about 4 MiB, which are outstanding together.
//
// Each outstanding request has memory of its own, a part of the shared one, until its answer. The
// caller's memory for pulled rows is not written after abandon(). For the thread of the client.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/compress/codec.h"
#include "weft/ps/internal/client_requests.h"
#include "weft/ps/internal/row_arena.h"

namespace weft::ps::internal {

class ClientRows {
 public:
  using Ticket = Client::Ticket;

  explicit ClientRows(ClientRequests& requests) : requests_(requests) {}

  void define(const std::vector<TableSpec>& tables);
  // Bytes of shared memory for requests, and where they begin there.
  std::uint64_t memory_bytes() const;
  void place(std::uint64_t offset) { arena_ = RowArena(offset, memory_bytes()); }

  // As the calls of Client. Pushes and evictions need a worker.
  Ticket push(const std::string& name, std::span<const std::uint64_t> keys,
              std::span<const float> gradients, double lr);
  Ticket pull(const std::string& name, std::span<const std::uint64_t> keys, std::span<float> rows);
  Ticket evict(const std::string& name, std::uint64_t age);

  // The answer to any request. Not `is_wanted`: only its memory is free.
  void take(const Request& request, std::string_view payload, bool is_wanted);
  // The call that waits for this ticket ends with an error: its memory may not stay longer.
  void abandon(Ticket ticket, const Error& error);

 private:
  struct RowTable {
    TableSpec spec;
    std::size_t width = 0;  // floats of a row
    std::unique_ptr<compress::Codec> push_codec, pull_codec;
  };
  using Places = std::vector<std::uint32_t>;
  using Part = std::span<const std::uint32_t>;  // of the places of a shard
  // Rows of an outstanding request.
  struct RowRequest {
    std::uint64_t offset = 0;  // of their memory
    Ticket ticket = 0;
    std::uint32_t table = 0;
    Places places;         // of pulled rows in `out`
    float* out = nullptr;  // none: a push, or nobody wants them any more
  };
  struct RowCall {
    std::uint32_t table = 0;
    std::span<const std::uint64_t> keys;
    double lr = -1;
    Ticket ticket = 0;
  };

  std::uint32_t find_table(const std::string& name) const;
  std::vector<Places> divide(const RowTable& table, std::span<const std::uint64_t> keys,
                             std::size_t floats) const;
  void check_rows(const RowTable& table, std::span<const std::uint64_t> keys,
                  std::span<const float> values) const;
  std::uint64_t take_memory(std::uint64_t bytes);
  // Calls `send` for the rows of each request. Returns the ticket of the call, which is forgotten
  // if it throws.
  Ticket send_parts(const RowCall& call, const std::vector<Places>& places,
                    const std::function<void(const RowCall&, std::uint32_t shard, Part)>& send);
  void send_push(const RowCall& call, std::uint32_t shard, Part places,
                 std::span<const float> gradients);
  void send_pull(const RowCall& call, std::uint32_t shard, Part places, std::span<float> rows);
  void take_rows(const Request& pull, const RowRequest& rows, std::string_view payload);

  ClientRequests& requests_;
  std::vector<RowTable> tables_;
  RowArena arena_;
  std::map<std::uint64_t, RowRequest> row_requests_;  // by number of the request
  std::vector<float> scratch_;
};

}  // namespace weft::ps::internal
