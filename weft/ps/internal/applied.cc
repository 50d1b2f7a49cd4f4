#include "weft/ps/internal/applied.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::ps::internal {

bool Applied::has(std::uint64_t client, std::uint64_t sequence) const {
  const auto known = clients_.find(client);
  return sequence <= (known == clients_.end() ? 0 : known->second.last);
}

Answer Applied::answer(const Request& command) const {
  const Client& client = clients_.at(command.client);
  const auto answer = client.answers.find(command.sequence);
  Answer found = answer == client.answers.end() ? Answer{} : answer->second;
  found.id = command.id;
  return found;
}

void Applied::add(const Request& command, Answer answer) {
  Client& client = clients_[command.client];
  client.last = std::max(client.last, command.sequence);
  client.answers.erase(client.answers.begin(), client.answers.upper_bound(command.done));
  answer.id = 0;  // a repeated command may have another number
  client.answers[command.sequence] = std::move(answer);
}

void Applied::put(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(clients_.size()));
  for (const auto& [number, client] : clients_) {
    out.put(number);
    out.put(client.last);
    out.put(static_cast<std::uint32_t>(client.answers.size()));
    for (const auto& [sequence, answer] : client.answers) {
      out.put(sequence);
      // An answer has the values of a pull, perhaps more than 4 GiB.
      const std::string bytes = encode(answer);
      out.put(static_cast<std::uint64_t>(bytes.size()));
      out.put_bytes(bytes);
    }
  }
}

Applied Applied::taken(ByteReader& in) {
  Applied applied;
  for (std::uint32_t left = in.take<std::uint32_t>(); left > 0; --left) {
    Client& client = applied.clients_[in.take<std::uint64_t>()];
    client.last = in.take<std::uint64_t>();
    for (std::uint32_t answers = in.take<std::uint32_t>(); answers > 0; --answers) {
      const auto sequence = in.take<std::uint64_t>();
      client.answers[sequence] = decode_answer(in.take_view(in.take<std::uint64_t>(), 1));
    }
  }
  return applied;
}

}  // namespace weft::ps::internal
