// The program weft_light: the command line without libtorch. weft starts it for the commands that
// need none (weft_main.cc), since libtorch takes a tenth of a second to load.
#include "weft/base/error.h"
#include "weft/base/process/start.h"
#include "weft/cli/commands.h"

namespace weft::cli {
namespace {

int refuse() {
  throw Error(Errc::kInvalidArgument,
              "this command needs libtorch; weft has it, and weft_light not");
}

}  // namespace

int train(const TrainCommand&) { return refuse(); }
int run(const launch::LaunchOptions&) { return refuse(); }
int doctor(const DoctorCommand&) { return refuse(); }
int generate(const GenerateCommand&) { return refuse(); }
int export_model(const ExportCommand&) { return refuse(); }
int tokenizer_train(const TokenizerCommand&) { return refuse(); }
int tokenizer_encode(const TokenizerCommand&) { return refuse(); }
int tokenizer_decode(const TokenizerCommand&) { return refuse(); }
int checkpoint_list(const CheckpointCommand&) { return refuse(); }
int checkpoint_show(const CheckpointCommand&) { return refuse(); }
int checkpoint_verify(const CheckpointCommand&) { return refuse(); }
int checkpoint_convert(const CheckpointCommand&) { return refuse(); }
int plan_auto(const AutoCommand&) { return refuse(); }
int plan_profile(const ProfileCommand&) { return refuse(); }

}  // namespace weft::cli

int main(int argc, char** argv) { weft::end_process(weft::cli::weft_main(argc, argv)); }
