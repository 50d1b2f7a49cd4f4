// What a client of a parameter server keeps: its memory, its connections and its requests.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/compress/codec.h"
#include "weft/ps/client.h"
#include "weft/ps/internal/client_link.h"
#include "weft/ps/internal/row_arena.h"

namespace weft::ps {

class Client::Impl {
 public:
  explicit Impl(ClientOptions options);

  Deadline patience() const { return Deadline::in(options_.timeout); }
  void define(const std::vector<Tensor>& tensors, const Options& options,
              const std::vector<TableSpec>& tables);
  void change_membership(internal::Op op);
  std::span<float> gradient(const std::string& name);
  Ticket push(const std::vector<std::string>& names, double lr, Coding coding);
  Ticket pull(const std::vector<std::string>& names, Coding coding);
  Ticket push_rows(const std::string& table, std::span<const std::uint64_t> keys,
                   std::span<const float> gradients, double lr);
  Ticket pull_rows(const std::string& table, std::span<const std::uint64_t> keys,
                   std::span<float> rows);
  void evict_rows(const std::string& table, std::uint64_t age);
  void wait(Ticket ticket, Deadline deadline);
  // As wait(). After an error, an answer that comes later is ignored. It must not count as the
  // answer to a later request.
  void wait_or_forget(Ticket ticket, Deadline deadline);
  bool is_done(Ticket ticket);
  std::span<const float> value(const std::string& name) const;
  std::int64_t clock() const { return shards_[0].clock; }
  Stats stats();
  Moved moved() const;
  std::string save();
  void load(const std::string& saved);

 private:
  using Request = internal::Request;
  using Outstanding = internal::Outstanding;

  struct Place {
    std::size_t count = 0;
    std::size_t offset = 0;  // in elements, in each area
    int area = 0;            // with the values of the last complete pull
    bool is_known = false;   // the servers know these values: a pull may give differences
  };
  struct Shard {
    std::vector<Piece> pieces;
    std::uint64_t sequence = 0, answered = 0;  // commands
    std::uint64_t version = 0;                 // of the last pull
    std::int64_t clock = 0;
  };
  struct State {
    int left = 0;
    std::optional<Error> error;
    std::vector<bool> pulled;  // by tensor
    bool exact = false;        // pulled without a codec
  };

  struct RowTable {
    TableSpec spec;
    std::size_t width = 0;  // floats of a row
    std::unique_ptr<compress::Codec> push_codec, pull_codec;
  };
  using Places = std::vector<std::uint32_t>;
  // Rows of an outstanding request.
  struct RowRequest {
    std::uint64_t offset = 0;  // of their memory
    Ticket ticket = 0;
    std::uint32_t table = 0;
    Places places;         // of pulled rows in `out`
    float* out = nullptr;  // none: a push, or nobody wants them any more
  };

  // Rows (client_rows.cc).
  void define_tables(const std::vector<TableSpec>& tables);
  std::uint64_t row_memory() const;
  std::uint32_t find_table(const std::string& name) const;
  std::vector<Places> divide(const RowTable& table, std::span<const std::uint64_t> keys,
                             std::size_t floats) const;
  void check_rows(const RowTable& table, std::span<const std::uint64_t> keys,
                  std::span<const float> values) const;
  std::uint64_t take_row_memory(std::uint64_t bytes);
  struct RowCall {
    std::uint32_t table = 0;
    std::span<const std::uint64_t> keys;
    double lr = -1;
    Ticket ticket = 0;
  };
  void send_push(const RowCall& call, std::uint32_t shard, std::span<const std::uint32_t> places,
                 std::span<const float> gradients);
  void send_pull(const RowCall& call, std::uint32_t shard, std::span<const std::uint32_t> places,
                 std::span<float> rows);
  void take_rows(const Request& pull, const RowRequest& rows, std::string_view payload);
  void abandon_rows(Ticket ticket, const Error& error);

  // Requests (client_requests.cc).
  void require_worker() const;
  std::size_t find(const std::string& name) const;
  std::vector<bool> choose(const std::vector<std::string>& names) const;
  void check_finite(const std::string& name, const float* values, std::size_t count) const;
  Request read(internal::Op op, std::uint32_t shard);
  Outstanding command(internal::Op op, std::uint32_t shard);
  void load(Outstanding& push, const Shard& shard, const std::vector<bool>& chosen,
            const float* values);
  void pull_shard(std::uint32_t number, const std::vector<bool>& chosen, Ticket ticket);
  void take(Shard& shard, const Outstanding& outstanding, const internal::Answer& answer,
            std::string_view payload);
  void take_values(const Request& pull, std::string_view payload);
  void pull_deltas(std::uint32_t number, const std::vector<bool>& chosen, Ticket ticket);
  void take_deltas(const Request& pull, std::string_view payload);
  // Before a command: a server drops one that comes while a pull of differences waits.
  void finish_pull_of_deltas();

  float* slot() const { return reinterpret_cast<float*>(memory_.data() + slot_ * stride_); }
  float* area(int number) const;
  std::uint64_t offset_of(const void* at) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(at) - memory_.data());
  }
  // Offset of a piece in an area, in elements.
  std::size_t offset_of(const Piece& piece) const {
    return tensors_[piece.tensor].offset + static_cast<std::size_t>(piece.first);
  }

  std::optional<std::string> save_shard(std::uint32_t shard, Deadline deadline);

  // Progress (client.cc).
  Ticket open_ticket();
  void send(std::uint32_t shard, Outstanding request, Ticket ticket);
  bool is_answered(Ticket ticket) const;
  void free_slot() { wait(slots_[slot_], patience()); }
  void advance();
  void drive_until_answered(Ticket ticket, Deadline deadline);
  void sleep(Deadline deadline);
  Error no_answer() const;

  std::unique_ptr<Directory> directory_;  // of the job's servers; null: the caller gave one
  const ClientOptions options_;
  const std::uint64_t client_;
  bool is_defined_ = false;
  Options spec_;
  std::vector<Place> tensors_;
  std::map<std::string, std::size_t> index_;
  std::size_t count_ = 0;
  std::uint64_t stride_ = 0;  // bytes of an area
  // Areas of `pipeline` pushes, two of values, and the rows of outstanding requests.
  net::internal::SharedMemory memory_;
  std::unique_ptr<compress::Codec> push_codec_, pull_codec_, delta_codec_;
  Ticket delta_ticket_ = 0;  // of the last pull of differences
  std::vector<float> residual_;
  std::vector<RowTable> row_tables_;
  internal::RowArena arena_;
  std::map<std::uint64_t, RowRequest> row_requests_;  // by number of the request
  std::vector<float> row_scratch_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<internal::ClientLink>> links_;
  std::map<Ticket, State> tickets_;
  std::vector<Ticket> slots_;  // the last push from each; 0: none
  std::size_t slot_ = 0;
  Ticket last_ticket_ = 0;
  std::uint64_t last_id_ = 0;
  bool pulling_ = false;
  Stats stats_;
  std::string saved_;  // the last piece of a save
};

}  // namespace weft::ps
