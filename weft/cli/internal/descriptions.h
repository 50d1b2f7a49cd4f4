// Descriptions of the subcommands in cli.cc for `weft --help`, and the examples in their own help.
#pragma once

#include "weft/cli/internal/subcommand.h"

namespace weft::cli {

inline constexpr About kTrain{
    "train", "Train a recipe: a folder with recipe.toml, or the name of one in recipes/.",
    R"(Examples:
  weft train recipes/fashion-mnist -n 2
  weft train fashion-mnist --set train.epochs=1 --set optimizer.lr=0.05
  weft train shapes --dry-run                print every key, its value and its origin
  weft train fashion-mnist --resume          continue the newest run from its last checkpoint
  weft train shapes -n 2 --http 127.0.0.1:0  with a live page and metrics for Prometheus
  weft run -n 2 --max-restarts 3 weft train fashion-mnist --name a --resume=auto
  mpirun -np 2 weft train fashion-mnist      ranks started by another launcher)"};

inline constexpr About kRuns{"runs",
                             "List the runs of a folder: state, step, losses, newest checkpoint.",
                             R"(Examples:
  weft runs
  weft runs experiments --json)"};

inline constexpr About kTop{
    "top",
    "Watch a run: step, loss, throughput, parts of a step, memory, slowest rank. "
    "Ctrl-C ends the view.",
    R"(Examples:
  weft top licenses-1
  weft top runs/licenses-1 --once
  weft top licenses-1 --http 127.0.0.1:0     serve the run's page, also after its end)"};

inline constexpr About kScale{
    "scale",
    "Change the number of ranks of a live job that was started with -n MIN:MAX, "
    "--max-replacements or --min-ranks.",
    R"(Examples:
  weft scale licenses-1 6                    a run, by its folder or its name in runs/
  weft scale 4711 2                          a job, by the process number of weft run)"};

inline constexpr About kStop{"stop",
                             "Stop a live job of weft run or weft train -n: its ranks save a "
                             "checkpoint and end. Waits until "
                             "they have ended.",
                             R"(Examples:
  weft stop licenses-1                       a run, by its folder or its name in runs/
  weft stop 4711 --grace 20                  a job, by the process number of its launcher
Exit codes: 0 the job has ended; 1 it was killed at the end of the grace period.)"};

inline constexpr About kStatus{
    "status",
    "Show where each rank of a live run is: step, phase, operation, and the rank it waits for.",
    R"(Examples:
  weft status licenses-1
  weft status runs/licenses-1 --json
  weft status 4242                           a job without a run folder, by its launcher)"};

inline constexpr About kReport{
    "report", "Write an HTML report of a run, or of several runs for comparison. It opens offline.",
    R"(Examples:
  weft report licenses-1                     writes runs/licenses-1/report.html
  weft report runs/* -o comparison.html)"};

inline constexpr About kCompletion{"completion", "Print a completion script for bash, zsh or fish.",
                                   R"(Examples:
  source <(weft completion bash)
  weft completion zsh > ~/.zfunc/_weft
  weft completion fish > ~/.config/fish/completions/weft.fish)"};

inline constexpr About kMan{"man", "Print the manual page of all commands, in roff.", R"(Examples:
  weft man | man -l -)"};

inline constexpr About kRun{
    "run",
    "Start the ranks of a program on this node, watch them, and name the first "
    "one that fails. The flags are torchrun's.",
    R"(Examples:
  weft run -n 2 ./program --its-flags
  weft run -n 2 --log-dir logs --tee 3 ./program
  weft run --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 -n 8 \
           --secret-file job.secret ./program
  weft run --nnodes 2:4 --rdzv-endpoint 10.0.0.1 --rdzv-id JOB -n 8 \
           --secret-file job.secret ./program)"};

inline constexpr About kNew{
    "new",
    "Create a project that trains a model of your own: CMakeLists.txt, main.cc, "
    "train.toml and a test.",
    R"(Examples:
  weft new rings && cd rings && cmake -B build && cmake --build build
  ./build/rings train.toml)"};

// The program weft-bench defines its options and help (bench/suite/bench_main.cc).
inline constexpr About kBench{
    "bench", "Measure weft and its peers in one run; weft bench --help shows more.", ""};

inline constexpr About kDoctor{
    "doctor",
    "Check this machine for problems in training: OK, WARN or FAIL, each with "
    "a fix. Exits with 1 on FAIL.",
    R"(Examples:
  weft doctor
  weft doctor --json
  weft run -n 4 --no-prefix weft doctor --topology > cluster.toml)"};

inline constexpr About kGenerate{
    "generate",
    "Generate text with a model trained by a text recipe, or with a GPT-2 or "
    "Llama in Hugging Face's format.",
    R"(Examples:
  weft generate runs/2026-01-31-120000-licenses --prompt "This program is"
  weft generate licenses-1 --tokens 100 --temperature 0
  weft generate folder/with/config.json --prompt "Once upon a time" --top-p 0.9 --stop "The end"
  weft run -n 2 --no-prefix weft generate licenses-1     the layers split over two ranks)"};

inline constexpr About kExport{
    "export", "Write the model of a text run as a folder that Hugging Face's transformers loads.",
    R"(Examples:
  weft export runs/2026-01-31-120000-licenses models/licenses
  weft export licenses-1 models/licenses && weft generate models/licenses)"};

inline constexpr About kTokenizer{
    "tokenizer", "Train a byte-pair tokenizer; encode text into tokens and decode them.",
    R"(Examples:
  weft tokenizer train /usr/share/common-licenses/* --vocab 1024 -o tokenizer.json
  weft tokenizer encode tokenizer.json "This program is free"
  weft tokenizer encode tokenizer.json --file book.txt --json
  weft tokenizer decode tokenizer.json 1130 318 285)"};

inline constexpr About kLinear{
    "linear",
    "Train linear models on sparse data over ranks, with a certificate, and predict with them.",
    R"(Examples:
  weft linear train train.svm -n 2                      logistic regression
  weft linear train train.svm --loss hinge -C 1 --gap 1e-4
  weft linear train prices.svm --loss squared --l1 0.01 --model lasso.model
  weft linear train train.svm --rule hogwild --threads 2 --epochs 20
  weft run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 -n 8 weft linear train /data/train.svm
  weft linear predict train.svm.model test.svm -o labels.txt)"};

inline constexpr About kCheckpoint{"checkpoint",
                                   "List, show, verify and convert the checkpoints of runs.",
                                   R"(Examples:
  weft checkpoint ls licenses-1
  weft checkpoint show runs/licenses-1/ckpt/step-00000938 --part model
  weft checkpoint verify licenses-1
  weft checkpoint convert licenses-1 model.safetensors
  weft checkpoint convert licenses-1 for-the-hub --max-shard-size 2GB
  weft checkpoint convert old/ckpt/step-00000100 new/ckpt --checkpoint)"};

}  // namespace weft::cli
